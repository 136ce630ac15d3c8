//! The lifecycle hooks of a container, `postStart` and `preStop`: a command, an HTTP request, or a sleep.

use std::time::Duration;

use corten_api::k8s_openapi::api::core::v1::{Container, HTTPGetAction, LifecycleHandler};

use crate::cri::Runtime;
use crate::error::{Error, Result};
use crate::http::Get;
use crate::pod::spec;

/// The time limit of an HTTP hook.
const HTTP_TIMEOUT: Duration = Duration::from_secs(30);

/// Runs a hook until it is done.
pub async fn run(
    runtime: &Runtime,
    handler: &LifecycleHandler,
    container: &Container,
    container_id: &str,
    pod_ip: &str,
) -> Result<()> {
    if let Some(exec) = &handler.exec {
        let command = exec.command.as_deref().unwrap_or_default();
        let output = runtime.exec_sync(container_id, command, Duration::ZERO).await?;
        if output.exit_code != 0 {
            return Err(Error::pod(format!("command '{}' exited with {}", command.join(" "), output.exit_code)));
        }
        return Ok(());
    }
    if let Some(action) = &handler.http_get {
        let get = http_get(action, container, pod_ip, "kube-lifecycle/1.36")?;
        return get.send(HTTP_TIMEOUT).await.map(drop).map_err(Error::pod);
    }
    if let Some(sleep) = &handler.sleep {
        tokio::time::sleep(Duration::from_secs(u64::try_from(sleep.seconds).unwrap_or(0))).await;
    }
    Ok(())
}

/// Returns the request of an `httpGet` of a probe or hook.
pub fn http_get(action: &HTTPGetAction, container: &Container, pod_ip: &str, user_agent: &str) -> Result<Get> {
    let port = spec::port_number(container, &action.port)
        .ok_or_else(|| Error::pod(format!("couldn't find port: {:?}", action.port)))?;
    let path = action.path.as_deref().unwrap_or("/");
    Ok(Get {
        https: action.scheme.as_deref().is_some_and(|scheme| scheme.eq_ignore_ascii_case("https")),
        host: action.host.clone().filter(|host| !host.is_empty()).unwrap_or_else(|| pod_ip.to_owned()),
        port,
        path: if path.starts_with('/') { path.to_owned() } else { format!("/{path}") },
        headers: action
            .http_headers
            .iter()
            .flatten()
            .map(|header| (header.name.clone(), header.value.clone()))
            .collect(),
        user_agent: user_agent.to_owned(),
    })
}
