//! Clients of an API server in the same process, without a socket.

use std::sync::Arc;

use bytes::Bytes;
use corten_apiserver::{Server, User};
use corten_client::{Client, Transport};
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt};

/// Returns a client that acts as a user, through the same pipeline as every other client.
pub fn client(server: &Arc<Server>, user: User) -> Client {
    let agent = user_agent(&user.name);
    Client::new(Arc::new(InProcess(server.in_process(user)))).with_user_agent(&agent)
}

/// Returns the user agent of a component, which managedFields show: that of upstream's program with the same role.
fn user_agent(user: &str) -> String {
    let program = match user.strip_prefix("system:").unwrap_or(user) {
        name if name.starts_with("node:") => "kubelet",
        name if name.starts_with("serviceaccount:kube-system:") => "kube-controller-manager",
        name if name.starts_with("kube-") || name == "cloud-controller-manager" => name,
        _ => "corten",
    };
    format!("{program}/{}", crate::version::VERSION)
}

/// The client's transport to an API server of the same process.
struct InProcess(corten_apiserver::InProcess);

impl Transport for InProcess {
    fn send(
        &self,
        request: http::Request<Bytes>,
    ) -> BoxFuture<'static, Result<http::Response<corten_client::Body>, corten_client::Error>> {
        let call = self.0.clone();
        async move { Ok(call.call(request).await.map(body)) }.boxed()
    }
}

fn body(body: corten_apiserver::Body) -> corten_client::Body {
    match body {
        corten_apiserver::Body::Full(bytes) => corten_client::Body::Full(bytes),
        corten_apiserver::Body::List(list) => corten_client::Body::Full(list.join()),
        corten_apiserver::Body::Watch(watch) => {
            corten_client::Body::Events(watch.events().map(|e| Ok(event(e))).boxed())
        }
        corten_apiserver::Body::Stream(stream) => corten_client::Body::Stream(
            stream.map(|chunk| chunk.map_err(|error| corten_client::Error::Transport(error.to_string()))).boxed(),
        ),
    }
}

fn event(event: corten_apiserver::WatchEvent) -> corten_client::WatchEvent {
    use corten_apiserver::WatchEvent as From;
    use corten_client::WatchEvent as To;
    match event {
        From::Added(object) => To::Added(object),
        From::Modified(object) => To::Modified(object),
        From::Deleted(object) => To::Deleted(object),
        From::Bookmark { revision, initial_events_end } => To::Bookmark { revision, initial_events_end },
        From::Error(status) => To::Error(status),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn components_are_called_as_upstreams_programs() {
        let program = |user: &str| user_agent(user).split('/').next().map(str::to_owned);
        for (user, expected) in [
            ("system:node:a", "kubelet"),
            ("system:kube-scheduler", "kube-scheduler"),
            ("system:kube-proxy", "kube-proxy"),
            ("system:serviceaccount:kube-system:deployment-controller", "kube-controller-manager"),
            ("system:corten:dns:a", "corten"),
            ("system:admin", "corten"),
        ] {
            assert_eq!(program(user).as_deref(), Some(expected), "{user}");
        }
    }
}
