//! UCX: the library, its version, and the devices that it uses for TCP.

use farfield_ucx_sys::{Context, ContextOptions, LoadError, Ucx, UcxError};
use serde_json::json;

use super::Check;

pub(super) fn checks() -> Vec<Check> {
    let ucx = match Ucx::get() {
        Ok(ucx) => ucx,
        Err(error) => {
            let advice = match error {
                LoadError::Library { .. } => {
                    "only `--fabric ucx` needs it: apt-get install libucx0 (Debian 12, Ubuntu 24.04 and later ones)"
                }
                LoadError::Symbol { .. } | LoadError::Version { .. } => {
                    "only `--fabric ucx` needs it: install UCX 1.13 or later, as in Debian 12 and Ubuntu 24.04"
                }
            };
            let found = match &error {
                LoadError::Version { found, path } => {
                    json!({ "usable": false, "version": found.to_string(), "path": path })
                }
                LoadError::Library { .. } | LoadError::Symbol { .. } => json!({ "usable": false }),
            };
            return vec![Check::note("library", one_line(&error.to_string()), advice).data(found)];
        }
    };
    let (version, path) = (ucx.version().to_string(), ucx.path().display().to_string());
    let data = json!({ "usable": true, "version": version, "path": path });
    let library = Check::ok("library", format!("UCX {version} ({path})")).data(data);
    vec![library, devices(Context::new(&ContextOptions::default()))]
}

fn devices(context: Result<Context, UcxError>) -> Check {
    let advice = "see UCX_NET_DEVICES and other variables UCX_… in the environment";
    match context.map(|context| context.devices()) {
        Ok(devices) if devices.is_empty() => {
            let text = "UCX makes a context, but no device is found in the text that it prints";
            Check::note("transports", text, "`ucx_info -d` (package ucx-utils) lists the devices").data(json!([]))
        }
        Ok(devices) => Check::ok("transports", devices.join(", ")).data(json!(devices)),
        Err(error) => Check::note("transports", one_line(&error.to_string()), advice).data(json!([])),
    }
}

fn one_line(text: &str) -> String {
    text.replace('\n', " ")
}
