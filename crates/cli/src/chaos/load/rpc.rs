//! Calls of several servers, which count them: one by one, several at once, and again and again.

use farfield::{Endpoint, NodeId, Result as CallResult, RpcClient, RpcOptions, RpcServer};
use rand::RngExt;
use rand::rngs::SmallRng;

use super::{Load, Place};
use crate::chaos::log::{Answer, Failure, Op, Recorder};

const OPTIONS: RpcOptions = RpcOptions { request_bytes_max: 0, reply_bytes_max: 0, window: 4, batch_max: 3 };
/// The most calls at once.
const MANY: usize = 8;

pub(super) struct RpcLoad {
    /// This node's; the service thread handles its requests.
    _server: Option<RpcServer<u64, u64>>,
    /// Those with living servers, as far as is known.
    clients: Vec<(NodeId, RpcClient<u64, u64>)>,
    endpoint: Endpoint,
    rng: SmallRng,
}

impl RpcLoad {
    pub(super) fn open(place: &mut Place<'_>) -> Result<RpcLoad, Failure> {
        let (mut server, mut clients, me) = (None, Vec::new(), place.node.id());
        for home in place.homes.clone() {
            let name = format!("rpc/{home}");
            if home == me {
                let mut count = 0;
                let add = move |_, addend: u64| {
                    let before = count;
                    count += addend;
                    before
                };
                server = Some(place.open(&name, |node, path| RpcServer::open_on_service(node, path, OPTIONS, add))?);
            } else {
                clients.push((home, place.open(&name, |node, path| RpcClient::open(node, path, home, OPTIONS))?));
            }
        }
        Ok(RpcLoad { _server: server, clients, endpoint: place.endpoint()?, rng: place.rng("rpc") })
    }

    /// A call. Its request is put so many times more at once. That it died is why a server is not called any more.
    fn call(&mut self, log: &mut Recorder, at: usize, again: u32) -> Result<(), Failure> {
        let ((server, client), endpoint) = (&self.clients[at], &self.endpoint);
        let call = async {
            let mut call = client.begin(endpoint, &1).await?;
            for _ in 0..again {
                // The wait puts it again in any case.
                let _ = call.retry();
            }
            call.wait().await
        };
        let begun = log.begin(Op::Call { server: server.0 }, endpoint.timeout());
        log.end_call(begun, endpoint.block_on(call), |before| Answer::Value(*before)).map(drop)
    }

    fn call_many(&mut self, log: &mut Recorder, at: usize) -> Result<(), Failure> {
        let ((server, client), endpoint) = (&self.clients[at], &self.endpoint);
        let count = self.rng.random_range(1..=MANY);
        let begun: Vec<_> = (0..count).map(|_| log.begin(Op::Call { server: server.0 }, endpoint.timeout())).collect();
        let results: Vec<CallResult<u64>> = endpoint.block_on(client.call_many(endpoint, &vec![1; count]));
        let mut done = Ok(());
        for (begun, result) in begun.into_iter().zip(results) {
            let ended = log.end_call(begun, result, |before| Answer::Value(*before)).map(drop);
            done = done.and(ended);
        }
        done
    }
}

impl Load for RpcLoad {
    fn step(&mut self, log: &mut Recorder) {
        if self.clients.is_empty() {
            return;
        }
        let at = self.rng.random_range(0..self.clients.len());
        let done = match self.rng.random_range(0..100) {
            0..60 => self.call(log, at, 0),
            60..80 => self.call(log, at, 2),
            80..95 => self.call_many(log, at),
            _ => {
                // It is given up. Whether it counts is not known.
                let (server, client) = &self.clients[at];
                let call = async { client.begin(&self.endpoint, &1).await.map(drop) };
                let begun = log.begin(Op::Call { server: server.0 }, self.endpoint.timeout());
                log.end_call(begun, self.endpoint.block_on(call), |()| Answer::Done).map(drop)
            }
        };
        if done.is_err_and(|failure| failure.is_death()) {
            self.clients.swap_remove(at);
        }
    }

    fn look(&mut self, log: &mut Recorder) {
        for (server, client) in &self.clients {
            let count = client.call(&self.endpoint, &0);
            let _ = log.call(Op::Count { server: server.0 }, &self.endpoint, count, |value| Answer::Value(*value));
        }
    }
}
