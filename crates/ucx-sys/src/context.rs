//! Contexts: the transports and devices in use, for any number of workers.

use core::ffi::c_char;
use std::ffi::{CStr, CString};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::error::{Status, UcxError};
use crate::load::{OLDEST, Ucx};
use crate::{
    UCP_ATTR_FIELD_THREAD_MODE, UCP_FEATURE_AM, UCP_FEATURE_WAKEUP, UCP_PARAM_FIELD_FEATURES,
    UCP_PARAM_FIELD_MT_WORKERS_SHARED, UCS_ERR_NO_DEVICE, UCS_OK, UCS_THREAD_MODE_MULTI, ucp_config, ucp_context,
    ucp_context_attr_t, ucp_params_t,
};

/// Contexts and workers are made and destroyed one at a time in a process: UCX may hang when contexts are made at the
/// same time.
pub(crate) fn one_at_a_time() -> MutexGuard<'static, ()> {
    static LIFECYCLE: Mutex<()> = Mutex::new(());
    LIFECYCLE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The part of UCX that a context uses. All else is UCX's configuration: `UCX_…` in the environment.
#[derive(Clone, Debug)]
pub struct ContextOptions {
    /// The transports, as in `UCX_TLS`, which has no effect.
    pub transports: String,
    /// The network devices, as in `UCX_NET_DEVICES`, which counts if there is none here. For TCP the names are those of
    /// interfaces.
    pub devices: Option<String>,
    /// How often UCX looks whether the peers of endpoints without traffic are there, as `UCX_KEEPALIVE_INTERVAL`, which
    /// has no effect. Each worker wakes so often.
    ///
    /// - An endpoint that a living process has closed is found by this.
    /// - A process that dies is found at once, since the system closes its sockets. If it has started a child that
    ///   still runs, the child may have them, too: they stay open, and the death is not found. The parent prevents that
    ///   by [`close_on_exec`](crate::close_on_exec).
    /// - A host that falls silent, by loss of power or of its network, is not found by this in any useful time.
    ///   Membership has to find it, and to drop the endpoint.
    pub keepalive: Duration,
    /// Other options, by their names without `UCX_`. UCX ignores names that it does not know. Those of the fields above
    /// and `MAX_EAGER_RAILS` have no effect.
    pub others: Vec<(String, String)>,
}

impl Default for ContextOptions {
    fn default() -> Self {
        let keepalive = Duration::from_secs(1);
        ContextOptions { transports: "tcp".to_owned(), devices: None, keepalive, others: Vec::new() }
    }
}

/// A context for active messages and for waiting on their events. A clone is the same context; it is freed with the
/// last clone and the last worker.
#[derive(Clone)]
pub struct Context {
    shared: Arc<Shared>,
}

struct Shared {
    ucx: &'static Ucx,
    handle: *mut ucp_context,
}

// SAFETY: the context is made with `mt_workers_shared`, and UCX has confirmed that any thread may use it at any time.
// The tables of functions do not change.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Context {
    /// Makes a context. It waits while another thread makes or frees a context or a worker.
    ///
    /// No thread may change the environment meanwhile, not even by [`std::env::set_var`]: UCX reads it by the C
    /// library, and std's lock does not keep readers in C away.
    ///
    /// # Errors
    /// There is no UCX, no device of these transports, or UCX refuses an option.
    pub fn new(options: &ContextOptions) -> Result<Context, UcxError> {
        let ucx = Ucx::get()?;
        let _one = one_at_a_time();
        let config = Config::read(ucx)?;
        // First, so that none of them takes the place of one below.
        for (name, value) in &options.others {
            config.set(name, value)?;
        }
        config.set("TLS", &options.transports)?;
        if let Some(devices) = &options.devices {
            config.set("NET_DEVICES", devices)?;
        }
        // Parts of a long message go by one connection. That is the default, and order depends on it.
        config.set("MAX_EAGER_RAILS", "1")?;
        config.set("KEEPALIVE_INTERVAL", &format!("{}ms", options.keepalive.as_millis().max(1)))?;
        let params = ucp_params_t {
            field_mask: UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_MT_WORKERS_SHARED,
            features: UCP_FEATURE_AM | UCP_FEATURE_WAKEUP,
            mt_workers_shared: 1,
            ..ucp_params_t::default()
        };
        let mut handle = core::ptr::null_mut();
        // SAFETY: parameters and configuration are valid for the call, which reads them only, and there is room for the
        // handle. The version is that of the declarations.
        let status =
            unsafe { (ucx.ucp.ucp_init_version)(OLDEST.major, OLDEST.minor, &params, config.handle, &mut handle) };
        if status == UCS_ERR_NO_DEVICE {
            let devices = options.devices.clone().or_else(|| std::env::var("UCX_NET_DEVICES").ok());
            let devices = devices.unwrap_or_else(|| "all devices".to_owned());
            return Err(UcxError::NoDevice { transports: options.transports.clone(), devices });
        }
        Status(status).of("ucp_init_version")?;
        let context = Shared { ucx, handle };
        let mut attr = ucp_context_attr_t { field_mask: UCP_ATTR_FIELD_THREAD_MODE, ..ucp_context_attr_t::default() };
        // SAFETY: the context is alive, and the attributes are valid to write.
        let status = unsafe { (ucx.ucp.ucp_context_query)(handle, &mut attr) };
        let sure = match Status(status).of("ucp_context_query") {
            Ok(()) if attr.thread_mode != UCS_THREAD_MODE_MULTI => Err(UcxError::NoThreads),
            queried => queried,
        };
        if let Err(error) = sure {
            // The lock is held already.
            context.free();
            core::mem::forget(context);
            return Err(error);
        }
        Ok(Context { shared: Arc::new(context) })
    }

    /// The transports with their devices, as `tcp/eth0`, as far as UCX prints them.
    #[must_use]
    pub fn devices(&self) -> Vec<String> {
        let text = self.printed().unwrap_or_default();
        let resources = text.lines().filter(|line| line.starts_with('#') && line.contains(" resource "));
        resources.filter_map(|line| Some(line.split_whitespace().next_back()?.to_owned())).collect()
    }

    /// The text that UCX prints about the context.
    fn printed(&self) -> Option<String> {
        let (mut text, mut bytes): (*mut c_char, usize) = (core::ptr::null_mut(), 0);
        // SAFETY: the stream is open until it is closed, and writes text and length, which live longer. Closing it
        // leaves a text that ends in a zero, which is freed once. The context is alive.
        unsafe {
            let stream = libc::open_memstream(&mut text, &mut bytes);
            if stream.is_null() {
                return None;
            }
            (self.shared.ucx.ucp.ucp_context_print_info)(self.shared.handle, stream);
            let closed = libc::fclose(stream);
            if text.is_null() {
                return None;
            }
            let printed = CStr::from_ptr(text).to_string_lossy().into_owned();
            libc::free(text.cast());
            (closed == 0).then_some(printed)
        }
    }

    pub(crate) fn ucx(&self) -> &'static Ucx {
        self.shared.ucx
    }

    pub(crate) fn handle(&self) -> *mut ucp_context {
        self.shared.handle
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context").field("version", &self.shared.ucx.version()).finish_non_exhaustive()
    }
}

impl Shared {
    fn free(&self) {
        // SAFETY: the last owner frees it, once. Every worker owns its context, so there is none.
        unsafe { (self.ucx.ucp.ucp_cleanup)(self.handle) };
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let _one = one_at_a_time();
        self.free();
    }
}

/// A configuration, as read from the environment.
struct Config {
    ucx: &'static Ucx,
    handle: *mut ucp_config,
}

impl Config {
    fn read(ucx: &'static Ucx) -> Result<Config, UcxError> {
        let mut handle = core::ptr::null_mut();
        // SAFETY: prefix and file may be null, and there is room for the handle.
        let status = unsafe { (ucx.ucp.ucp_config_read)(core::ptr::null(), core::ptr::null(), &mut handle) };
        Status(status).of("ucp_config_read")?;
        Ok(Config { ucx, handle })
    }

    fn set(&self, name: &str, value: &str) -> Result<(), UcxError> {
        let text = |text: &str| CString::new(text).map_err(|_| UcxError::ZeroByte { name: name.to_owned() });
        let (c_name, c_value) = (text(name)?, text(value)?);
        // SAFETY: the configuration is alive; name and value end in a zero and are only read.
        let status = unsafe { (self.ucx.ucp.ucp_config_modify)(self.handle, c_name.as_ptr(), c_value.as_ptr()) };
        if status != UCS_OK {
            return Err(UcxError::Option { name: name.into(), value: value.into(), status: Status(status) });
        }
        Ok(())
    }
}

impl Drop for Config {
    fn drop(&mut self) {
        // SAFETY: it is freed once; a context has its own copy of the options.
        unsafe { (self.ucx.ucp.ucp_config_release)(self.handle) };
    }
}
