//! The effects of loading UCX on the process: alone in its program, so that nothing else has loaded it.
//!
//! A machine without UCX passes and says so, unless `FARFIELD_NEED_UCX=1`.

use std::{env, fs};

use farfield_ucx_sys::{Context, ContextOptions, Ucx, Worker};

/// The signals that have a handler, but for those of the C library itself (32 and 33).
fn handled_signals() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
    u64::from_str_radix(mask.trim(), 16).unwrap() & !(3 << 31)
}

/// The first instructions of functions of the C library that UCX may replace.
fn code() -> Vec<[u8; 16]> {
    let functions = [libc::mmap as *const [u8; 16], libc::munmap as *const [u8; 16], libc::mremap as *const [u8; 16]];
    // SAFETY: these functions are longer than that, and code may be read.
    functions.iter().map(|start| unsafe { start.read_volatile() }).collect()
}

#[test]
fn loading_leaves_signals_environment_and_the_c_library_alone() {
    let variables: Vec<_> = env::vars_os().collect();
    let (signals, before) = (handled_signals(), code());
    let ucx = match Ucx::get() {
        Ok(ucx) => ucx,
        Err(reason) => {
            assert!(env::var_os("FARFIELD_NEED_UCX").is_none_or(|value| value != "1"), "no UCX: {reason}");
            eprintln!("no UCX: {reason}");
            return;
        }
    };
    eprintln!("UCX {} ({})", ucx.version(), ucx.path().display());
    assert!(ucx.path().is_absolute() && ucx.path().exists(), "{ucx:?}");
    assert_eq!(env::vars_os().collect::<Vec<_>>(), variables);
    let context = Context::new(&ContextOptions::default()).unwrap();
    let worker = Worker::new(&context).unwrap();
    assert_eq!(handled_signals(), signals, "handlers of signals have changed");
    assert_eq!(code(), before, "code of the C library has changed");
    let devices = context.devices();
    eprintln!("devices: {devices:?}");
    assert!(devices.iter().any(|device| device == "tcp/lo"), "{devices:?}");
    // In either order.
    drop(context);
    drop(worker);
    assert_eq!(handled_signals(), signals);
}
