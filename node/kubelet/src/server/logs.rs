//! `/containerLogs`: finds the log of the requested container instance and streams it.

use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use corten_api::k8s_openapi::api::core::v1::{ContainerStatus, PodStatus};
use futures::StreamExt;
use http::{Response, StatusCode};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use jiff::Timestamp;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tracing::debug;

use super::{Body, State, query, text};
use crate::logs::options::LogOptions;
use crate::logs::reader;
use crate::pod::observed::InstanceState;
use crate::pod::spec;
use crate::pod::view::View;

/// The number of chunks of a log that wait for a slow client.
const QUEUE: usize = 8;

pub async fn container_logs(
    state: &Arc<State>,
    namespace: &str,
    pod: &str,
    container: &str,
    query_string: Option<&str>,
) -> Response<Body> {
    let options = match LogOptions::parse(&query::map(query_string), Timestamp::now()) {
        Ok(options) => options,
        Err(message) => return text(StatusCode::BAD_REQUEST, &message),
    };
    let Some(view) = state.views.find(namespace, pod, None) else {
        return text(StatusCode::NOT_FOUND, &format!("pod {pod:?} not found\n"));
    };
    let current = view.borrow().clone();
    if spec::container(&current.pod, container).is_none() {
        return text(StatusCode::NOT_FOUND, &format!("container {container:?} not found in pod {pod:?}\n"));
    }
    let id = match container_id(&current.status, pod, container, options.previous) {
        Ok(id) => id,
        Err(message) => return text(StatusCode::BAD_REQUEST, &message),
    };
    match log_path(state, &current, &id) {
        Some(path) => stream(state, view, path, id, options),
        None => text(StatusCode::BAD_REQUEST, &format!("container {container:?} in pod {pod:?} is not available")),
    }
}

/// Returns the id of the container instance whose log is requested, or an error in upstream's words.
fn container_id(status: &PodStatus, pod: &str, container: &str, previous: bool) -> Result<String, String> {
    let about = format!("container {container:?} in pod {pod:?}");
    let status = find(status, container).ok_or_else(|| format!("{about} is not available"))?;
    let state = status.state.clone().unwrap_or_default();
    let last = status.last_state.as_ref().and_then(|last| last.terminated.as_ref());
    let last = last.and_then(|last| last.container_id.clone()).filter(|id| !id.is_empty());
    let id = if previous {
        last.ok_or_else(|| format!("previous terminated {about} not found"))?
    } else if state.running.is_some() {
        status.container_id.clone().unwrap_or_default()
    } else if let Some(terminated) = &state.terminated {
        let own = terminated.container_id.clone().filter(|id| !id.is_empty());
        own.or(last).ok_or_else(|| format!("{about} is terminated"))?
    } else if let Some(last) = last {
        last
    } else {
        let reason = state.waiting.and_then(|waiting| waiting.reason).unwrap_or_default();
        return Err(match reason.as_str() {
            "ErrImagePull" => format!("{about} is waiting to start: image can't be pulled"),
            "ImagePullBackOff" => format!("{about} is waiting to start: trying and failing to pull image"),
            "" => format!("{about} is waiting to start - no logs yet"),
            reason => format!("{about} is waiting to start: {reason}"),
        });
    };
    Ok(id.rsplit("://").next().unwrap_or_default().to_owned())
}

fn find<'a>(status: &'a PodStatus, container: &str) -> Option<&'a ContainerStatus> {
    [&status.container_statuses, &status.init_container_statuses, &status.ephemeral_container_statuses]
        .into_iter()
        .flatten()
        .flatten()
        .find(|status| status.name == container)
}

fn log_path(state: &State, view: &View, id: &str) -> Option<PathBuf> {
    let instance = view.observed.instances.iter().find(|instance| instance.id == id)?;
    if !instance.log_path.is_empty() {
        return Some(PathBuf::from(&instance.log_path));
    }
    let namespace = spec::namespace(&view.pod);
    let name = spec::name(&view.pod);
    let uid = spec::uid(&view.pod);
    let directory = state.services.config.pod_log_dir(namespace, name, uid).join(&instance.name);
    Some(directory.join(format!("{}.log", instance.restart_count)))
}

fn stream(
    state: &Arc<State>,
    view: watch::Receiver<View>,
    path: PathBuf,
    id: String,
    options: LogOptions,
) -> Response<Body> {
    let (sender, receiver) = mpsc::channel::<Bytes>(QUEUE);
    let state = state.clone();
    let tasks = state.tasks.clone();
    tasks.spawn(async move {
        let (is_running, running) = watch::channel(is_running(&view.borrow(), &id));
        let read = reader::read(&path, &options, &state.log_watcher, running, sender);
        let streamed = futures::future::join(read, follow_state(view, id, is_running));
        tokio::select! {
            () = state.shutdown.cancelled() => {}
            (result, ()) = streamed => if let Err(error) = result {
                debug!(%error, path = %path.display(), "log not read");
            },
        }
    });
    let frames = ReceiverStream::new(receiver).map(|chunk| Ok(Frame::data(chunk)));
    let mut response = Response::new(BodyExt::boxed(StreamBody::new(frames)));
    response.headers_mut().insert(http::header::CONTENT_TYPE, http::HeaderValue::from_static("text/plain"));
    response
}

fn is_running(view: &View, id: &str) -> bool {
    view.observed.instances.iter().any(|instance| instance.id == id && instance.state == InstanceState::Running)
}

/// Sends whether the container runs, from the pod's view, until the reader has ended.
async fn follow_state(mut view: watch::Receiver<View>, id: String, sender: watch::Sender<bool>) {
    loop {
        let changed = tokio::select! {
            () = sender.closed() => return,
            changed = view.changed() => changed,
        };
        let now = changed.is_ok() && is_running(&view.borrow_and_update(), &id);
        sender.send_if_modified(|was| std::mem::replace(was, now) != now);
        if !now {
            return sender.closed().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use corten_api::Typed;
    use corten_api::k8s_openapi::api::core::v1::Pod;
    use serde_json::json;

    use super::*;

    fn id_of(status: corten_meta::Value, previous: bool) -> Result<String, String> {
        let mut status = status;
        status["name"] = json!("c");
        let pod = Pod::from_value(json!({"status": {"containerStatuses": [status]}})).unwrap();
        container_id(&pod.status.unwrap(), "p", "c", previous)
    }

    #[test]
    fn the_right_container_instance_is_chosen() {
        let running = json!({"containerID": "corten://b", "state": {"running": {}},
            "lastState": {"terminated": {"exitCode": 1, "containerID": "corten://a"}}});
        assert_eq!(id_of(running.clone(), false), Ok("b".into()));
        assert_eq!(id_of(running, true), Ok("a".into()));
        let crashed = json!({"state": {"waiting": {"reason": "CrashLoopBackOff"}},
            "lastState": {"terminated": {"exitCode": 1, "containerID": "corten://a"}}});
        assert_eq!(id_of(crashed, false), Ok("a".into()));
        let creating = json!({"state": {"waiting": {"reason": "ContainerCreating"}}});
        assert_eq!(
            id_of(creating.clone(), false),
            Err("container \"c\" in pod \"p\" is waiting to start: ContainerCreating".into())
        );
        assert_eq!(id_of(creating, true), Err("previous terminated container \"c\" in pod \"p\" not found".into()));
    }
}
