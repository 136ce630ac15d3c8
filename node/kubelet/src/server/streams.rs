//! `/exec`, `/attach`, `/portForward`: the runtime returns a URL, and the client's upgraded connection is joined to it
//! byte for byte. The kubelet does not decode the streams.

use std::time::Duration;

use corten_cri::v1 as cri;
use http::{Request, Response, StatusCode, Uri};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tracing::debug;

use super::{Body, State, full, query, text};
use crate::error::Result;
use crate::pod::observed::Instance;
use crate::pod::view::View;
use crate::pods::plan::usable_sandbox;

const RUN_TIMEOUT: Duration = Duration::from_secs(60);

/// The pod that a path names.
#[derive(Clone, Copy)]
pub struct PodPath<'a> {
    namespace: &'a str,
    name: &'a str,
    uid: Option<&'a str>,
}

impl<'a> PodPath<'a> {
    pub fn new(namespace: &'a str, name: &'a str, uid: Option<&'a str>) -> PodPath<'a> {
        PodPath { namespace, name, uid }
    }
}

/// Returns the pod, or the message for a client that it does not exist.
fn find_view(state: &State, pod: PodPath<'_>) -> std::result::Result<View, String> {
    let view = state.views.find(pod.namespace, pod.name, pod.uid).map(|view| view.borrow().clone());
    view.ok_or_else(|| format!("pod {:?} not found\n", pod.name))
}

/// Returns the running instance of the container, or the message for a client that there is none.
fn find_instance(state: &State, pod: PodPath<'_>, container: &str) -> std::result::Result<Instance, String> {
    let view = find_view(state, pod)?;
    let running = view.observed.running().find(|instance| instance.name == container).cloned();
    running.ok_or_else(|| format!("container not found ({container:?})"))
}

pub async fn exec(state: &State, pod: PodPath<'_>, container: &str, request: Request<Incoming>) -> Response<Body> {
    let instance = match find_instance(state, pod, container) {
        Ok(instance) => instance,
        Err(message) => return text(StatusCode::NOT_FOUND, &message),
    };
    let parameters = query::pairs(request.uri().query());
    let tty = query::flag(&parameters, &["tty"]);
    let url = state.services.runtime.client.exec(cri::ExecRequest {
        container_id: instance.id,
        cmd: query::all(&parameters, "command"),
        tty,
        stdin: query::flag(&parameters, &["input", "stdin"]),
        stdout: query::flag(&parameters, &["output", "stdout"]),
        stderr: query::flag(&parameters, &["error", "stderr"]) && !tty,
    });
    forward(state, url.await, request).await
}

pub async fn attach(state: &State, pod: PodPath<'_>, container: &str, request: Request<Incoming>) -> Response<Body> {
    let instance = match find_instance(state, pod, container) {
        Ok(instance) => instance,
        Err(message) => return text(StatusCode::NOT_FOUND, &message),
    };
    let parameters = query::pairs(request.uri().query());
    let tty = query::flag(&parameters, &["tty"]);
    let url = state.services.runtime.client.attach(cri::AttachRequest {
        container_id: instance.id,
        tty,
        stdin: query::flag(&parameters, &["input", "stdin"]),
        stdout: query::flag(&parameters, &["output", "stdout"]),
        stderr: query::flag(&parameters, &["error", "stderr"]) && !tty,
    });
    forward(state, url.await, request).await
}

pub async fn port_forward(state: &State, pod: PodPath<'_>, request: Request<Incoming>) -> Response<Body> {
    let view = match find_view(state, pod) {
        Ok(view) => view,
        Err(message) => return text(StatusCode::NOT_FOUND, &message),
    };
    let Some(sandbox) = usable_sandbox(&view.pod, &view.observed) else {
        return text(StatusCode::NOT_FOUND, &format!("pod {:?} has no sandbox\n", pod.name));
    };
    let parameters = query::pairs(request.uri().query());
    let ports = ["port", "ports"].iter().flat_map(|name| query::all(&parameters, name));
    let port =
        ports.flat_map(|list| list.split(',').filter_map(|port| port.parse().ok()).collect::<Vec<i32>>()).collect();
    let wanted = cri::PortForwardRequest { pod_sandbox_id: sandbox.id.clone(), port };
    let url = state.services.runtime.client.port_forward(wanted).await;
    forward(state, url, request).await
}

/// Answers `/run`: runs a command and responds with its output.
pub async fn run(state: &State, pod: PodPath<'_>, container: &str, query_string: Option<&str>) -> Response<Body> {
    let instance = match find_instance(state, pod, container) {
        Ok(instance) => instance,
        Err(message) => return text(StatusCode::NOT_FOUND, &message),
    };
    let parameters = query::pairs(query_string);
    let command = query::all(&parameters, "cmd");
    let command: Vec<String> = command.iter().flat_map(|cmd| cmd.split(' ').map(str::to_owned)).collect();
    match state.services.runtime.client.exec_sync(&instance.id, &command, RUN_TIMEOUT).await {
        Ok(output) if output.exit_code == 0 => Response::new(full([output.stdout, output.stderr].concat())),
        Ok(output) => {
            let printed = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
            text(StatusCode::INTERNAL_SERVER_ERROR, &format!("{printed}command exited with {}", output.exit_code))
        }
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
    }
}

/// Forwards the request to the runtime's URL and joins the two upgraded connections.
async fn forward(state: &State, url: Result<String>, request: Request<Incoming>) -> Response<Body> {
    let joined = match url {
        Ok(url) => join(state, &url, request).await,
        Err(error) => Err(error.to_string()),
    };
    joined.unwrap_or_else(|message| text(StatusCode::INTERNAL_SERVER_ERROR, &message))
}

async fn join(state: &State, url: &str, mut request: Request<Incoming>) -> std::result::Result<Response<Body>, String> {
    let url: Uri = url.parse().map_err(|error| format!("the runtime's streaming URL is not one: {error}"))?;
    let authority = url.authority().ok_or("the runtime's streaming URL has no host")?.clone();
    let stream = TcpStream::connect(authority.as_str()).await.map_err(|error| format!("dial the runtime: {error}"))?;
    let _ = stream.set_nodelay(true);
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
    state.spawn(async move {
        if let Err(error) = connection.with_upgrades().await {
            debug!(%error, "connection to the runtime ended");
        }
    });
    let client = hyper::upgrade::on(&mut request);
    let (mut parts, body) = request.into_parts();
    let path = url.path_and_query().map_or("/", |path| path.as_str());
    parts.uri = path.parse().map_err(|error| format!("the runtime's streaming URL is not one: {error}"))?;
    let host = http::HeaderValue::from_str(authority.as_str()).map_err(|error| error.to_string())?;
    parts.headers.insert(http::header::HOST, host);
    let mut answer = sender.send_request(Request::from_parts(parts, body)).await.map_err(|error| error.to_string())?;
    if answer.status() == StatusCode::SWITCHING_PROTOCOLS {
        let runtime = hyper::upgrade::on(&mut answer);
        state.spawn(async move {
            match tokio::try_join!(client, runtime) {
                Ok((client, runtime)) => {
                    if let Err(error) = corten_listen::relay(TokioIo::new(client), TokioIo::new(runtime)).await {
                        debug!(%error, "stream ended");
                    }
                }
                Err(error) => debug!(%error, "stream not upgraded"),
            }
        });
    }
    Ok(answer.map(|body| body.map_err(std::io::Error::other).boxed()))
}
