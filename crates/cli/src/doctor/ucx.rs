//! UCX: the library, its version, and the devices that it uses for TCP.

use farfield_ucx_sys::{Context, ContextOptions, LoadError, Ucx, UcxError};
use serde_json::json;

use super::Check;

pub(super) fn checks() -> Vec<Check> {
    let ucx = match Ucx::get() {
        Ok(ucx) => ucx,
        Err(error) => {
            let advice = match error {
                LoadError::Library { .. } => "nothing needs it yet; to have it: apt-get install libucx0",
                LoadError::Symbol { .. } | LoadError::Version { .. } => {
                    "nothing needs it yet; install UCX 1.13 or later"
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
    match context {
        Ok(context) => {
            let devices = context.devices();
            Check::ok("transports", devices.join(", ")).data(json!(devices))
        }
        Err(error) => {
            let advice = "see UCX_NET_DEVICES and other variables UCX_… in the environment";
            Check::note("transports", one_line(&error.to_string()), advice).data(json!([]))
        }
    }
}

fn one_line(text: &str) -> String {
    text.replace('\n', " ")
}
