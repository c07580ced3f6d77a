//! The server, and the ways to handle its requests.

use core::fmt;
use core::marker::PhantomData;
use std::sync::Arc;

use farfield_core::toolkit::{ErrorContext, Object, ObjectBuilder, ObjectDescriptor, RefusedPause, Regions};
use farfield_core::{Endpoint, Node, Result, Value};
use farfield_fabric::{GroupKey, Instant, NodeId};

use crate::client::described;
use crate::incoming::Incoming;
use crate::layout::{Image, Layout};
use crate::options::RpcOptions;
use crate::requests::{Claim, Core, Openings, Served};
use crate::service::{Closing, Service, Welcome};

/// Handles the requests of clients on other nodes.
///
/// Either threads of its node serve, when they have time and as many as there are; or the node's service thread does
/// ([`Server::open_on_service`]). The handle can be cloned, and is used by any threads of its node at once.
///
/// ```
/// use farfield_rpc::{Client, RpcOptions, Server};
/// # let nodes = farfield::local_session(2)?; let options = RpcOptions::default();
/// let server = Server::<u64, u64>::open(&nodes[0], "sum", options)?;
/// let mut sum = 0;
/// let thread = nodes[0].spawn("serves", move |ep| {
///     let deadline = ep.now() + std::time::Duration::from_millis(200);
///     let handled = ep.block_on(server.serve(&ep, deadline, |_, request| {
///         sum += request;
///         sum
///     }));
///     assert_eq!(handled.unwrap(), 2);
/// })?;
/// let client = Client::<u64, u64>::open(&nodes[1], "sum", nodes[0].id(), options)?;
/// let ep = nodes[1].endpoint()?;
/// assert_eq!(ep.block_on(client.call(&ep, &3))?, 3);
/// assert_eq!(ep.block_on(client.call(&ep, &4))?, 7);
/// # thread.join().unwrap(); Ok::<(), farfield::Error>(())
/// ```
pub struct Server<Req: Value, Rep: Value> {
    handle: Arc<Handle>,
    types: PhantomData<fn(Req) -> Rep>,
}

impl<Req: Value, Rep: Value> Clone for Server<Req, Rep> {
    fn clone(&self) -> Server<Req, Rep> {
        Server { handle: Arc::clone(&self.handle), types: PhantomData }
    }
}

impl<Req: Value, Rep: Value> fmt::Debug for Server<Req, Rep> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("options", &self.handle.core.options).finish_non_exhaustive()
    }
}

/// Closes the server with the last handle.
struct Handle {
    core: Arc<Core>,
    /// None once it is dropped.
    object: Option<Object>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.core.close();
        let Some(object) = self.object.take() else { return };
        let node = object.node().for_service();
        // No client is connected after this.
        drop(object);
        node.add_poller(Box::new(Closing::new(self.core.openings())));
    }
}

impl<Req: Value, Rep: Value> Server<Req, Rep> {
    /// Opens a server. Threads of this node handle its requests, with [`Server::serve`], [`Server::serve_next`],
    /// [`Server::try_serve`] or [`Server::accept`]. It waits for no client.
    ///
    /// ```
    /// # use farfield_rpc::{RpcOptions, Server};
    /// # let node = farfield::Node::builder().start()?;
    /// let server = Server::<u64, u64>::open(&node, "double", RpcOptions::default())?;
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// The path is open already, or clients still use the memory of an earlier server of this node; no memory; invalid
    /// options.
    pub fn open(node: &Node, path: &str, options: RpcOptions) -> Result<Server<Req, Rep>> {
        let handle = open::<Req, Rep>(node, path, options, false)?;
        Ok(Server { handle: Arc::new(handle), types: PhantomData })
    }

    /// Opens a server. The node's service thread handles its requests, also while all threads of the application
    /// compute. The handler must be short, and must not wait for another node: the service thread has other work. If it
    /// panics, the node is dead. No other thread serves: [`Server::serve`] and the like fail with
    /// [`ErrorKind::Config`](farfield_core::ErrorKind::Config).
    ///
    /// ```
    /// # use farfield_rpc::{RpcOptions, Server};
    /// # let node = farfield::Node::builder().start()?;
    /// let mut sum = 0;
    /// let server = Server::<u64, u64>::open_on_service(&node, "sum", RpcOptions::default(), move |_client, request| {
    ///     sum += request;
    ///     sum
    /// })?;
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Server::open`].
    pub fn open_on_service(
        node: &Node,
        path: &str,
        options: RpcOptions,
        handler: impl FnMut(NodeId, Req) -> Rep + Send + 'static,
    ) -> Result<Server<Req, Rep>> {
        let handle = open::<Req, Rep>(node, path, options, true)?;
        node.add_poller(Box::new(Service::new(Arc::clone(&handle.core), handler)));
        Ok(Server { handle: Arc::new(handle), types: PhantomData })
    }

    /// Handles requests until the deadline, and sleeps while there are none. The result is how many.
    ///
    /// ```
    /// # use farfield_rpc::{RpcOptions, Server};
    /// # let node = farfield::Node::builder().start()?; let ep = node.endpoint()?;
    /// # let server = Server::<u64, u64>::open(&node, "double", RpcOptions::default())?;
    /// let deadline = ep.now() + std::time::Duration::from_millis(5);
    /// assert_eq!(ep.block_on(server.serve(&ep, deadline, |_client, request| 2 * request))?, 0); // no client has called
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// This node is evicted; the service thread serves.
    pub async fn serve(
        &self,
        endpoint: &Endpoint,
        deadline: Instant,
        mut handler: impl FnMut(NodeId, Req) -> Rep,
    ) -> Result<usize> {
        let (mut handled, mut pause) = (0, RefusedPause::default());
        loop {
            self.core().check_threads()?;
            let served = self.core().serve_all::<Req, Rep>(endpoint, &mut handler);
            handled += served.handled;
            if endpoint.now() >= deadline {
                return Ok(handled);
            }
            match self.wait(endpoint, deadline, &served, &mut pause).await {
                Err(error) if error.is_timeout() => return Ok(handled),
                waited => waited?,
            }
        }
    }

    /// [`serve`](Self::serve), which it waits for on this thread.
    ///
    /// ```
    /// # use farfield_rpc::{RpcOptions, Server};
    /// # let node = farfield::Node::builder().start()?; let ep = node.endpoint()?;
    /// # let server = Server::<u64, u64>::open(&node, "double", RpcOptions::default())?;
    /// let deadline = ep.now() + std::time::Duration::from_millis(5);
    /// assert_eq!(server.serve_blocking(&ep, deadline, |_client, request| 2 * request)?, 0); // no client has called
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// As `serve`.
    pub fn serve_blocking(
        &self,
        endpoint: &Endpoint,
        deadline: Instant,
        handler: impl FnMut(NodeId, Req) -> Rep,
    ) -> Result<usize> {
        endpoint.block_on(self.serve(endpoint, deadline, handler))
    }

    /// Waits for requests, as long as the endpoint's timeout, and handles those of one put. The result is how many.
    ///
    /// ```
    /// # use farfield_rpc::{Client, RpcOptions, Server};
    /// # let nodes = farfield::local_session(2)?; let options = RpcOptions::default();
    /// # let server = Server::<u64, u64>::open(&nodes[0], "double", options)?;
    /// # let client = Client::<u64, u64>::open(&nodes[1], "double", nodes[0].id(), options)?;
    /// # let (here, there) = (nodes[0].endpoint()?, nodes[1].endpoint()?);
    /// let mut call = there.block_on(client.begin(&there, &4))?;
    /// assert_eq!(here.block_on(server.serve_next(&here, |_client, request| 2 * request))?, 1);
    /// assert_eq!(there.block_on(call.wait())?, 8);
    /// # drop(call); Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// A timeout; this node is evicted; the service thread serves.
    pub async fn serve_next(&self, endpoint: &Endpoint, handler: impl FnMut(NodeId, Req) -> Rep) -> Result<usize> {
        self.serve_next_deadline(endpoint, endpoint.deadline(), handler).await
    }

    /// [`Server::serve_next`] with a deadline.
    ///
    /// ```
    /// # use farfield_rpc::{RpcOptions, Server};
    /// # let node = farfield::Node::builder().start()?; let ep = node.endpoint()?;
    /// # let server = Server::<u64, u64>::open(&node, "double", RpcOptions::default())?;
    /// let deadline = ep.now() + std::time::Duration::from_millis(5);
    /// let served = ep.block_on(server.serve_next_deadline(&ep, deadline, |_client, request| 2 * request));
    /// assert!(served.unwrap_err().is_timeout()); // no client has called
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// As `serve_next`.
    pub async fn serve_next_deadline(
        &self,
        endpoint: &Endpoint,
        deadline: Instant,
        mut handler: impl FnMut(NodeId, Req) -> Rep,
    ) -> Result<usize> {
        let mut image = Image::new();
        loop {
            let claim = self.next(endpoint, deadline, &mut image).await?;
            let handled = self.core().handle::<Req, Rep>(endpoint, claim, &image, &mut handler);
            if handled.count > 0 {
                return Ok(handled.count);
            }
        }
    }

    /// Handles the requests that are there, at most one put of each slot. The result is how many. One whose slot
    /// another thread is still giving back is left for the next call.
    ///
    /// ```
    /// # use farfield_rpc::{RpcOptions, Server};
    /// # let node = farfield::Node::builder().start()?; let ep = node.endpoint()?;
    /// # let server = Server::<u64, u64>::open(&node, "double", RpcOptions::default())?;
    /// assert_eq!(server.try_serve(&ep, |_client, request| 2 * request)?, 0); // between two pieces of other work
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// This node is evicted; the service thread serves.
    pub fn try_serve(&self, endpoint: &Endpoint, mut handler: impl FnMut(NodeId, Req) -> Rep) -> Result<usize> {
        self.core().check_threads()?;
        Ok(self.core().serve_all::<Req, Rep>(endpoint, &mut handler).handled)
    }

    /// Waits for requests, as long as the endpoint's timeout, and takes those of one put, to be answered later and by
    /// any thread.
    ///
    /// ```
    /// # use farfield_rpc::{Client, RpcOptions, Server};
    /// # let nodes = farfield::local_session(2)?; let options = RpcOptions::default();
    /// # let server = Server::<u64, u64>::open(&nodes[0], "double", options)?;
    /// # let client = Client::<u64, u64>::open(&nodes[1], "double", nodes[0].id(), options)?;
    /// # let (here, there) = (nodes[0].endpoint()?, nodes[1].endpoint()?);
    /// let mut call = there.block_on(client.begin(&there, &4))?;
    /// let incoming = here.block_on(server.accept(&here))?;
    /// assert_eq!((incoming.client(), incoming.requests()), (nodes[1].id(), &[4][..]));
    /// incoming.reply(&here, [8]); // now, or when its result is there
    /// assert_eq!(there.block_on(call.wait())?, 8);
    /// # drop(call); Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// A timeout; this node is evicted; the service thread serves.
    pub async fn accept(&self, endpoint: &Endpoint) -> Result<Incoming<Req, Rep>> {
        self.accept_deadline(endpoint, endpoint.deadline()).await
    }

    /// [`Server::accept`] with a deadline.
    ///
    /// ```
    /// # use farfield_rpc::{RpcOptions, Server};
    /// # let node = farfield::Node::builder().start()?; let ep = node.endpoint()?;
    /// # let server = Server::<u64, u64>::open(&node, "double", RpcOptions::default())?;
    /// let deadline = ep.now() + std::time::Duration::from_millis(5);
    /// assert!(ep.block_on(server.accept_deadline(&ep, deadline)).unwrap_err().is_timeout()); // no client has called
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// # Errors
    /// As `accept`.
    pub async fn accept_deadline(&self, endpoint: &Endpoint, deadline: Instant) -> Result<Incoming<Req, Rep>> {
        let mut image = Image::new();
        loop {
            let claim = self.next(endpoint, deadline, &mut image).await?;
            if let Ok(requests) = self.core().decode::<Req>(endpoint, claim, &image) {
                return Ok(Incoming::new(Arc::clone(self.core()), claim, requests));
            }
        }
    }

    fn core(&self) -> &Arc<Core> {
        &self.handle.core
    }

    /// Takes the next message, with a copy of it.
    async fn next(&self, endpoint: &Endpoint, deadline: Instant, image: &mut Image) -> Result<Claim> {
        let mut pause = RefusedPause::default();
        loop {
            self.core().check_threads()?;
            match self.core().next(endpoint, image) {
                (Some(claim), _) => return Ok(claim),
                (None, served) => self.wait(endpoint, deadline, &served, &mut pause).await?,
            }
        }
    }

    /// Waits until a request is there; or a little, if the last scan could not answer one.
    async fn wait(
        &self,
        endpoint: &Endpoint,
        deadline: Instant,
        last: &Served,
        pause: &mut RefusedPause,
    ) -> Result<()> {
        if last.is_refused && endpoint.now() < deadline {
            pause.wait(endpoint, deadline).await;
            return Ok(());
        }
        let core = self.core();
        let mut image = Image::new();
        let mut is_there = || core.is_any_ready(&mut image).then_some(Ok(()));
        if endpoint.spin_until(&mut is_there).is_some() {
            return Ok(());
        }
        let fails = || core.check_member().err().map(Err);
        let waited = endpoint.wait_until_or(deadline, is_there, fails).await;
        waited.waiting_for("a request").of(&core.path)?
    }
}

fn open<Req: Value, Rep: Value>(node: &Node, path: &str, options: RpcOptions, is_on_service: bool) -> Result<Handle> {
    // A put to a group of the service thread wakes it.
    let group = if is_on_service { GroupKey::SERVICE } else { GroupKey::SIGNAL };
    let places = node.nodes();
    let layout = Layout::new::<Req, Rep>(&options, places, path)?;
    let mut regions = Regions::new(node);
    let requests = regions.alloc("requests", group, layout.requests_bytes).of(path)?;
    let openings = Arc::new(Openings::new(places));
    let (of_clients, here) = (Arc::clone(&openings), node.for_service());
    let connected = move |from: NodeId, theirs: &ObjectDescriptor| {
        let replies =
            theirs.regions.iter().find(|region| region.0 == "replies" && region.2 == layout.replies_bytes as u64);
        let Some((_, opening, _)) = replies else { return };
        of_clients.opened(here.rank_of(from), from, *opening);
        here.add_poller(Box::new(Welcome(*opening)));
    };
    let builder = ObjectBuilder::new(node, path, "Rpc").layout(&described::<Req, Rep>(&options)).homes(&[node.id()]);
    let object = builder.regions(regions).on_connect(connected).open()?;
    let core = Core::new(&object, requests, openings, layout, options, is_on_service);
    Ok(Handle { core: Arc::new(core), object: Some(object) })
}
