//! The options of a connection as an object, which is how admission sees it: PodExecOptions and its kin.

use corten_api::Role;
use corten_meta::Value;
use serde_json::json;

use crate::handlers::Target;

/// The object that the query of a request stands for.
pub fn of_request(target: &Target<'_>, role: Role) -> Value {
    let info = &target.context.info;
    let kind = target.resource.kind.subresource(&info.subresource).map(|sub| sub.kind.clone()).unwrap_or_default();
    let mut options = json!({ "kind": kind, "apiVersion": "v1" });
    match role {
        Role::Exec | Role::Attach => {
            for stream in ["stdin", "stdout", "stderr", "tty"].into_iter().filter(|stream| info.query.flag(stream)) {
                options[stream] = true.into();
            }
            if let Some(container) = info.query.get("container") {
                options["container"] = container.into();
            }
            let command: Vec<&str> = info.query.all("command").collect();
            if !command.is_empty() {
                options["command"] = json!(command);
            }
        }
        Role::PortForward => {
            let ports: Vec<u16> = info.query.all("ports").filter_map(|port| port.parse().ok()).collect();
            if !ports.is_empty() {
                options["ports"] = json!(ports);
            }
        }
        _ => {
            let path = info.query.get("path").unwrap_or(&info.remainder);
            if !path.is_empty() {
                options["path"] = path.into();
            }
        }
    }
    options
}
