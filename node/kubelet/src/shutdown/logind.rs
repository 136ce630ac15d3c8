//! The connection to logind, which signals a shutdown before it happens and delays it as long as a program holds an
//! inhibitor lock.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::mpsc;

use super::dbus::{Argument, Bus, Message, Method};

const MANAGER: &str = "org.freedesktop.login1.Manager";
/// A configuration file of logind that upstream's kubelet writes too, under the same name.
const SETTINGS: &str = "etc/systemd/logind.conf.d/99-kubelet.conf";

/// The inhibitor lock: as long as it is held, the machine does not shut down.
type Lock = Arc<Mutex<Option<OwnedFd>>>;

pub struct Logind {
    lock: Lock,
    connection: UnixStream,
    /// True when a shutdown begins, false when it was cancelled.
    pub shutdowns: mpsc::Receiver<bool>,
    listener: Option<JoinHandle<()>>,
}

impl Logind {
    /// Takes the inhibitor lock for at least this duration, and listens.
    pub fn connect(socket: &Path, root: &Path, longest: Duration) -> io::Result<Logind> {
        let mut bus = Bus::connect(socket)?;
        let mut delay = delay(&mut bus)?;
        if delay < longest {
            extend_delay(&mut bus, root, longest)?;
            delay = self::delay(&mut bus)?;
        }
        if delay < longest {
            return Err(io::Error::other(format!(
                "node shutdown manager was unable to update logind InhibitDelayMaxSec to {longest:?} (ShutdownGracePeriod), current value of InhibitDelayMaxSec ({delay:?}) is less than requested ShutdownGracePeriod"
            )));
        }
        let lock: Lock = Arc::new(Mutex::new(Some(inhibit(&mut bus)?)));
        let daemon = "org.freedesktop.DBus";
        let matched =
            Method { destination: daemon, path: "/org/freedesktop/DBus", interface: daemon, member: "AddMatch" };
        let rule =
            format!("type='signal',interface='{MANAGER}',member='PrepareForShutdown',path='/org/freedesktop/login1'");
        bus.call(matched, &[Argument::Text(&rule)])?;
        let connection = bus.handle()?;
        let (tell, shutdowns) = mpsc::channel(4);
        let own = lock.clone();
        let listener = std::thread::Builder::new().name("logind".into()).spawn(move || listen(bus, &own, &tell))?;
        Ok(Logind { lock, connection, shutdowns, listener: Some(listener) })
    }

    /// Releases the lock, so that the machine shuts down.
    pub fn release(&self) {
        *self.lock.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

impl Drop for Logind {
    fn drop(&mut self) {
        // The thread wakes from its read, or from a full channel, and ends.
        self.shutdowns.close();
        let _ = self.connection.shutdown(std::net::Shutdown::Both);
        if let Some(Err(_)) = self.listener.take().map(JoinHandle::join) {
            tracing::error!("the thread of logind panicked");
        }
    }
}

fn listen(mut bus: Bus, lock: &Lock, tell: &mpsc::Sender<bool>) {
    while let Ok(signal) = bus.next_signal() {
        if signal.interface != MANAGER || signal.member != "PrepareForShutdown" {
            continue;
        }
        let begins = signal.number() == Some(1);
        if !begins {
            match inhibit(&mut bus) {
                Ok(taken) => *lock.lock().unwrap_or_else(PoisonError::into_inner) = Some(taken),
                Err(error) => tracing::warn!(%error, "the lock against a shutdown could not be taken again"),
            }
        }
        if tell.blocking_send(begins).is_err() {
            return;
        }
    }
}

fn logind<'a>(interface: &'a str, member: &'a str) -> Method<'a> {
    Method { destination: "org.freedesktop.login1", path: "/org/freedesktop/login1", interface, member }
}

fn inhibit(bus: &mut Bus) -> io::Result<OwnedFd> {
    let arguments = ["shutdown", "kubelet", "Kubernetes kubelet handling node shutdown", "delay"].map(Argument::Text);
    let mut answer = bus.call(logind(MANAGER, "Inhibit"), &arguments)?;
    let index = answer.number().and_then(|index| usize::try_from(index).ok());
    let given = index.filter(|index| *index < answer.descriptors.len());
    given.map(|index| answer.descriptors.swap_remove(index)).ok_or_else(|| io::Error::other("logind gave no lock"))
}

/// Returns the time for which logind waits for the holders of locks.
fn delay(bus: &mut Bus) -> io::Result<Duration> {
    let arguments = [MANAGER, "InhibitDelayMaxUSec"].map(Argument::Text);
    let answer: Message = bus.call(logind("org.freedesktop.DBus.Properties", "Get"), &arguments)?;
    answer
        .property()
        .map(Duration::from_micros)
        .ok_or_else(|| io::Error::other("logind does not tell how long it waits"))
}

/// Writes the configuration file and lets logind reload it.
fn extend_delay(bus: &mut Bus, root: &Path, longest: Duration) -> io::Result<()> {
    let path = root.join(SETTINGS);
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let text = format!("# Kubelet logind override\n[Login]\nInhibitDelayMaxSec={}\n", longest.as_secs());
    std::fs::write(&path, text)?;
    let method = Method {
        destination: "org.freedesktop.systemd1",
        path: "/org/freedesktop/systemd1",
        interface: "org.freedesktop.systemd1.Manager",
        member: "KillUnit",
    };
    let arguments = [Argument::Text("systemd-logind.service"), Argument::Text("all"), Argument::Number(libc::SIGHUP)];
    bus.call(method, &arguments).map(drop)
}
