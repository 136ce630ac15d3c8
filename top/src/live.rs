//! The loop: changes of the cluster, keys and signals in, frames out.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use corten_client::{Cache, Caches, Client, ListOptions, Subscription};
use corten_meta::Value;
use jiff::Timestamp;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::actions;
use crate::frame::{self, frame};
use crate::keys::Key;
use crate::rows::{self, Usage};
use crate::state::{Action, Mode, Section, State, Target};
use crate::terminal::Terminal;
use crate::{Error, Settings};

/// The shortest time between two frames, and the longest: ages grow also when nothing happens.
const FRAME: Duration = Duration::from_millis(100);
const IDLE_FRAME: Duration = Duration::from_secs(1);
/// The interval at which the use of nodes and pods is read.
const USAGE: Duration = Duration::from_secs(5);
/// The interval at which open logs are read again.
const LOGS: Duration = Duration::from_secs(2);
/// The keys that wait.
const KEYS: usize = 64;

/// The use of nodes and pods.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    pub nodes: BTreeMap<String, Usage>,
    pub pods: BTreeMap<String, Usage>,
}

/// Reads the use of nodes and pods; nothing where a cluster does not measure it, or the user may not read it.
pub async fn usage(client: &Client, namespace: &str) -> Measured {
    let read = async |path: String| -> Value {
        match client.get_raw(&path).await {
            Ok(bytes) => serde_json::from_slice(&bytes).unwrap_or_default(),
            Err(_) => Value::Null,
        }
    };
    let place = if namespace.is_empty() { String::new() } else { format!("/namespaces/{namespace}") };
    let nodes = read("/apis/metrics.k8s.io/v1beta1/nodes".to_owned()).await;
    let pods = read(format!("/apis/metrics.k8s.io/v1beta1{place}/pods")).await;
    Measured { nodes: rows::node_usage(&nodes), pods: rows::pod_usage(&pods) }
}

/// The objects of a section, and the changes of them.
struct Followed {
    section: Section,
    /// Kept: a cache ends with its last holder.
    _cache: Arc<Cache>,
    changes: Subscription,
}

/// Shows the cluster until the user quits.
pub async fn run(settings: Settings) -> Result<(), Error> {
    // A user who may not read pods gets the reason before the screen changes.
    let place = match settings.namespace.is_empty() {
        true => String::new(),
        false => format!("/namespaces/{}", settings.namespace),
    };
    settings.client.get_raw(&format!("/api/v1{place}/pods?limit=1")).await?;
    let shutdown = CancellationToken::new();
    let _ended = shutdown.clone().drop_guard();
    let bell = Arc::new(Notify::new());
    let mut followed = follow(&settings, &bell, &shutdown).await;
    let (keys, mut pressed) = mpsc::channel(KEYS);
    let mut signals = Signals::new()?;
    let mut terminal = Terminal::open(&keys)?;
    let mut measured = tokio::spawn(measure(settings.client.clone(), settings.namespace.clone(), Duration::ZERO));
    let mut logs_at = Instant::now() + LOGS;
    let mut state = State::default();
    loop {
        take_changes(&mut followed, &mut state);
        let size = terminal.size();
        terminal.draw(&frame(&state, size, Timestamp::now(), settings.colors))?;
        let not_before = Instant::now() + FRAME;
        tokio::select! {
            () = bell.notified() => tokio::time::sleep_until(not_before).await,
            key = pressed.recv() => {
                let Some(key) = key else { return Ok(()) };
                let page = page(&state, size);
                let action = state.press(&key, page);
                if !act(action, &settings, &mut state, &mut terminal, &keys).await? {
                    return Ok(());
                }
            }
            ended = signals.next() => if ended { return Ok(()) },
            taken = &mut measured => {
                let taken = taken.unwrap_or_default();
                state.node_usage = taken.nodes;
                state.pod_usage = taken.pods;
                measured = tokio::spawn(measure(settings.client.clone(), settings.namespace.clone(), USAGE));
            }
            () = tokio::time::sleep(IDLE_FRAME) => {}
        }
        if Instant::now() >= logs_at {
            refresh_logs(&settings.client, &mut state, size.lines.saturating_sub(2)).await;
            logs_at = Instant::now() + LOGS;
        }
    }
}

async fn measure(client: Client, namespace: String, after: Duration) -> Measured {
    tokio::time::sleep(after).await;
    usage(&client, &namespace).await
}

/// Begins to follow nodes, pods and events. What the user may not list stays empty.
async fn follow(settings: &Settings, bell: &Arc<Notify>, shutdown: &CancellationToken) -> Vec<Followed> {
    let caches = Caches::new(settings.client.clone(), shutdown.clone());
    let mut followed = Vec::new();
    for section in Section::ALL {
        let resource = actions::resource(section);
        let namespace = if section == Section::Nodes { "" } else { settings.namespace.as_str() };
        if settings.client.get_raw(&format!("{}?limit=1", resource.path(namespace))).await.is_err() {
            continue;
        }
        let cache = caches.resource(&resource, namespace, ListOptions::default());
        let changes = cache.subscribe_with(bell);
        followed.push(Followed { section, _cache: cache, changes });
    }
    followed
}

/// Takes the changes of all caches over into the rows.
fn take_changes(followed: &mut [Followed], state: &mut State) {
    for one in followed {
        while let Some(change) = one.changes.try_next() {
            let key = format!("{}/{}", change.key.namespace, change.key.name);
            insert(state, one.section, key, change.new.map(|object| object.value()));
        }
    }
}

fn insert(state: &mut State, section: Section, key: String, object: Option<Value>) {
    match (section, object) {
        (Section::Nodes, Some(object)) => drop(state.nodes.insert(key, rows::node(&object))),
        (Section::Pods, Some(object)) => drop(state.pods.insert(key, rows::pod(&object))),
        (Section::Events, Some(object)) => drop(state.events.insert(key, rows::event(&object))),
        (Section::Nodes, None) => drop(state.nodes.remove(&key)),
        (Section::Pods, None) => drop(state.pods.remove(&key)),
        (Section::Events, None) => drop(state.events.remove(&key)),
    }
}

/// Returns the rows of the chosen section, or the lines of a text, that are in sight.
fn page(state: &State, size: frame::Size) -> usize {
    match state.mode {
        Mode::Pager(_) => size.lines.saturating_sub(2),
        _ => frame::heights(state, size).0[state.section as usize],
    }
}

/// Does the work of a key; false if the user quits.
async fn act(
    action: Action,
    settings: &Settings,
    state: &mut State,
    terminal: &mut Terminal,
    keys: &mpsc::Sender<Key>,
) -> io::Result<bool> {
    let client = &settings.client;
    match action {
        Action::Nothing => {}
        Action::Quit => return Ok(false),
        Action::Logs(target) => show_logs(client, state, target).await,
        Action::Shell(target) => {
            let shell = || actions::shell(settings.kubeconfig.as_deref(), &target);
            if let Err(error) = terminal.lend(keys, shell)? {
                state.message = error;
            }
        }
        Action::Describe(target) => describe(settings, state, target).await,
        Action::Delete(target) => {
            let kind = target.section.plural().trim_end_matches('s');
            state.message = match actions::delete(client, &target).await {
                Ok(()) => format!("{kind} {} is deleted", target.name),
                Err(error) => error.to_string(),
            };
        }
    }
    Ok(true)
}

async fn show_logs(client: &Client, state: &mut State, target: Target) {
    match actions::logs(client, &target).await {
        Ok(text) => state.follow(format!("logs of {}/{}", target.namespace, target.name), &text, target),
        Err(error) => state.message = error.to_string(),
    }
}

/// Reads open logs again; a user who looks at their end stays there.
async fn refresh_logs(client: &Client, state: &mut State, page: usize) {
    let Mode::Pager(pager) = &state.mode else { return };
    let Some(target) = pager.followed.clone() else { return };
    if let Ok(text) = actions::logs(client, &target).await {
        state.refresh(&text, page);
    }
}

async fn describe(settings: &Settings, state: &mut State, target: Target) {
    let kind = target.section.plural();
    let title = format!("{} {}/{}", kind.trim_end_matches('s'), target.namespace, target.name);
    match actions::yaml(&settings.client, &target).await {
        Ok(yaml) => {
            let explainer = &settings.explainer;
            let findings = match target.section {
                Section::Events => String::new(),
                _ => explainer.explain(kind, target.namespace.clone(), target.name.clone()).await,
            };
            let separator = if findings.is_empty() { "" } else { "\n" };
            state.show(title, &format!("{findings}{separator}{yaml}"));
        }
        Err(error) => state.message = error.to_string(),
    }
}

/// The signals that end the command, and that of a new size.
struct Signals {
    ends: [Signal; 4],
    resized: Signal,
}

impl Signals {
    fn new() -> io::Result<Signals> {
        Ok(Signals {
            ends: [
                signal(SignalKind::terminate())?,
                signal(SignalKind::interrupt())?,
                signal(SignalKind::hangup())?,
                signal(SignalKind::quit())?,
            ],
            resized: signal(SignalKind::window_change())?,
        })
    }

    /// Waits for a signal; returns whether it ends the command.
    async fn next(&mut self) -> bool {
        let [terminate, interrupt, hangup, quit] = &mut self.ends;
        tokio::select! {
            _ = terminate.recv() => true,
            _ = interrupt.recv() => true,
            _ = hangup.recv() => true,
            _ = quit.recv() => true,
            _ = self.resized.recv() => false,
        }
    }
}
