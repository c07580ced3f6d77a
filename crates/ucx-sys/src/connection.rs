//! Endpoints of a worker: connecting, failing and closing.

use core::ffi::c_void;
use core::ptr;
use std::sync::Arc;

use crate::callback::{Health, has_failed};
use crate::error::{Status, UcxError};
use crate::handle::Endpoint;
use crate::load::Ucx;
use crate::worker::{Address, Worker};
use crate::{
    UCP_EP_CLOSE_FLAG_FORCE, UCP_EP_PARAM_FIELD_ERR_HANDLER, UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE,
    UCP_EP_PARAM_FIELD_REMOTE_ADDRESS, UCP_ERR_HANDLING_MODE_PEER, UCP_OP_ATTR_FIELD_FLAGS, UCS_INPROGRESS,
    UCS_PTR_IS_ERR, ucp_ep, ucp_ep_params_t, ucp_err_handler_t, ucp_request_param_t,
};

/// An endpoint of a worker.
pub(crate) struct Connection {
    /// Null when it has failed: it is closed then, and UCX sees no operation on it.
    ep: *mut ucp_ep,
    health: Arc<Health>,
}

/// An endpoint that UCX is closing.
pub(crate) struct Closing {
    /// Null if UCX has reported it as closed.
    request: *mut c_void,
    pub(crate) health: Arc<Health>,
}

impl Closing {
    /// Whether UCX has reported it as closed. Its request is freed then.
    pub(crate) fn is_complete(&mut self, ucx: &Ucx) -> bool {
        if self.request.is_null() {
            return true;
        }
        // SAFETY: the request is alive: it is freed here, and forgotten.
        unsafe {
            if (ucx.ucp.ucp_request_check_status)(self.request) == UCS_INPROGRESS {
                return false;
            }
            (ucx.ucp.ucp_request_free)(self.request);
        }
        self.request = ptr::null_mut();
        true
    }
}

impl Worker {
    /// Makes an endpoint to the worker with this address. The connection itself is made by progress on both sides;
    /// messages wait for it. A peer that is not reached is reported later, by [`check`](Worker::check).
    ///
    /// # Errors
    /// UCX has no transport to the address, the peer's system refuses the connection at once, or UCX cannot make the
    /// endpoint.
    pub fn connect(&mut self, address: &Address) -> Result<Endpoint, UcxError> {
        // Two pointers: that of `healths`, and this one. Where there are more, an operation or an endpoint that has
        // failed may still mark it.
        let unused = self.spare_healths.iter().position(|health| Arc::strong_count(health) == 2);
        let health = match unused {
            Some(index) => self.spare_healths.swap_remove(index),
            None => {
                self.healths.push(Arc::new(Health::new(Arc::clone(&self.any_failed))));
                Arc::clone(&self.healths[self.healths.len() - 1])
            }
        };
        health.reset();
        let params = ucp_ep_params_t {
            field_mask: UCP_EP_PARAM_FIELD_REMOTE_ADDRESS
                | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE
                | UCP_EP_PARAM_FIELD_ERR_HANDLER,
            address: address.0.as_ptr().cast(),
            err_mode: UCP_ERR_HANDLING_MODE_PEER,
            err_handler: ucp_err_handler_t { cb: Some(has_failed), arg: Arc::as_ptr(&health).cast_mut().cast() },
            ..ucp_ep_params_t::default()
        };
        let mut ep = ptr::null_mut();
        // SAFETY: the worker is alive, and there is room for the endpoint. The address is a whole one, by the contract
        // of `Address::from_bytes`. The health lives as long as the worker, and is only read: its fields
        // are atomic.
        let status = unsafe { (self.ucx.ucp.ucp_ep_create)(self.handle, &params, &mut ep) };
        if let Err(error) = Status(status).of("ucp_ep_create") {
            self.spare_healths.push(health);
            return Err(error);
        }
        let index = self.connections.insert(Connection { ep, health });
        Ok(Endpoint::new(self.number, index, &self.dropped))
    }

    /// Whether the endpoint has not failed, as far as progress has found out.
    ///
    /// # Errors
    /// [`UcxError::EndpointFailed`]: it has failed, and stays so.
    pub fn check(&self, endpoint: &Endpoint) -> Result<(), UcxError> {
        self.live(endpoint).map(|_| ())
    }

    fn live(&self, endpoint: &Endpoint) -> Result<&Connection, UcxError> {
        let connection = self.connections.get(endpoint.index_in(self.number)?);
        match connection.health.failure() {
            Some(status) => Err(UcxError::EndpointFailed { status: Status(status) }),
            None => Ok(connection),
        }
    }

    /// The endpoint for an operation of UCX, and its health, which an error of the operation marks. One that has failed
    /// is refused: UCX may crash on it.
    pub(crate) fn usable(&self, endpoint: &Endpoint) -> Result<(*mut ucp_ep, Arc<Health>), UcxError> {
        self.live(endpoint).map(|connection| (connection.ep, Arc::clone(&connection.health)))
    }

    /// Closes the endpoints that have failed. Whether there was any.
    pub(crate) fn close_failed(&mut self) -> bool {
        let (ucx, before) = (self.ucx, self.closing.len());
        let failed = self.connections.iter_mut().filter(|connection| connection.health.failure().is_some());
        self.closing.extend(failed.filter_map(|connection| close(ucx, connection)));
        self.closing.len() > before
    }

    /// Closes all endpoints.
    pub(crate) fn close_all(&mut self) {
        let ucx = self.ucx;
        self.closing.extend(self.connections.iter_mut().filter_map(|connection| close(ucx, connection)));
    }

    /// Closes an endpoint after its handle was dropped. Whether it was still open.
    pub(crate) fn remove_connection(&mut self, index: usize) -> bool {
        let before = self.closing.len();
        if let Some(mut connection) = self.connections.remove(index) {
            self.closing.extend(close(self.ucx, &mut connection));
        }
        self.closing.len() > before
    }
}

/// Closes an endpoint by force, if it is not closed. UCX leaves some of that to progress, and reports no event for it.
fn close(ucx: &Ucx, connection: &mut Connection) -> Option<Closing> {
    let ep = core::mem::replace(&mut connection.ep, ptr::null_mut());
    if ep.is_null() {
        return None;
    }
    let param = ucp_request_param_t {
        op_attr_mask: UCP_OP_ATTR_FIELD_FLAGS,
        flags: UCP_EP_CLOSE_FLAG_FORCE,
        ..ucp_request_param_t::default()
    };
    // SAFETY: the endpoint is open, and not used afterwards: its pointer is gone. Its mode is PEER, as closing by force
    // demands. The parameters are valid for the call.
    let request = unsafe { (ucx.ucp.ucp_ep_close_nbx)(ep, &param) };
    // An error is of the transport: the endpoint is freed all the same.
    let request = if UCS_PTR_IS_ERR(request) { ptr::null_mut() } else { request };
    Some(Closing { request, health: Arc::clone(&connection.health) })
}
