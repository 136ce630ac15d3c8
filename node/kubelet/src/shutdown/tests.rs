//! Groups by table, and a shutdown signalled by a fake D-Bus.

use std::os::unix::net::UnixListener;

use super::fake_bus::FakeBus;
use super::*;

#[test]
fn pods_are_terminated_by_priority() {
    let simple = ShutdownConfig {
        grace_period: Duration::from_secs(30),
        critical_grace_period: Duration::from_secs(10),
        ..ShutdownConfig::default()
    };
    let list = [(0, 20), (SYSTEM_CRITICAL, 10)].map(|(priority, seconds)| Period { priority, seconds });
    assert_eq!(periods(&simple), list);
    assert!(periods(&ShutdownConfig::default()).is_empty());
    let by_priority = [(1000, 5), (0, 60), (100_000, 2)].map(|(priority, seconds)| Period { priority, seconds });
    let named = ShutdownConfig { by_priority: by_priority.to_vec(), ..ShutdownConfig::default() };
    let pods = [("low", -5), ("plain", 0), ("mid", 1500), ("top", 100_000), ("edge", 999)];
    let pods = pods.map(|(uid, priority)| (uid.to_owned(), priority)).to_vec();
    let names = |list: &[&str]| list.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    assert_eq!(
        groups(&periods(&named), pods),
        [(60, names(&["low", "plain", "edge"])), (5, names(&["mid"])), (2, names(&["top"]))]
    );
}

#[tokio::test]
async fn logind_delays_the_shutdown_and_the_lock_is_taken_again() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("bus");
    let listener = UnixListener::bind(&socket).unwrap();
    let (signal, signals) = std::sync::mpsc::channel::<u32>();
    let bus = std::thread::spawn(move || {
        let mut bus = FakeBus::accept(&listener);
        let mut calls: Vec<String> = Vec::new();
        while calls.last().is_none_or(|last| last != "AddMatch") {
            let seconds = if calls.iter().any(|call| call == "KillUnit") { 30 } else { 5 };
            calls.push(bus.answer_one(seconds));
        }
        for begins in signals {
            bus.prepare_for_shutdown(begins);
            if begins == 0 {
                calls.push(bus.answer_one(30));
            }
        }
        calls
    });
    let root = folder.path().to_owned();
    let connecting = tokio::task::spawn_blocking(move || Logind::connect(&socket, &root, Duration::from_secs(30)));
    let mut logind = connecting.await.unwrap().unwrap();
    let written = std::fs::read_to_string(folder.path().join("etc/systemd/logind.conf.d/99-kubelet.conf")).unwrap();
    assert!(written.contains("InhibitDelayMaxSec=30"), "{written}");
    let patience = Duration::from_secs(300);
    signal.send(1).unwrap();
    assert_eq!(tokio::time::timeout(patience, logind.shutdowns.recv()).await.unwrap(), Some(true));
    logind.release();
    signal.send(0).unwrap();
    assert_eq!(tokio::time::timeout(patience, logind.shutdowns.recv()).await.unwrap(), Some(false));
    drop(signal);
    let calls = tokio::task::spawn_blocking(move || bus.join().unwrap()).await.unwrap();
    let expected =
        ["Hello", "InhibitDelayMaxUSec", "KillUnit", "InhibitDelayMaxUSec", "Inhibit", "AddMatch", "Inhibit"];
    assert_eq!(calls, expected, "the lock is taken again when the shutdown was called off");
    assert_eq!(tokio::time::timeout(patience, logind.shutdowns.recv()).await.unwrap(), None, "the bus is gone");
}

#[test]
fn without_d_bus_the_kubelet_does_not_start() {
    let shutdown = ShutdownConfig {
        grace_period: Duration::from_secs(30),
        bus: Some("/nonexistent/bus".into()),
        ..ShutdownConfig::default()
    };
    let error = Shutdown::new(&Config { shutdown, ..Config::default() }).err().unwrap().to_string();
    assert!(error.contains("shutdownGracePeriod needs logind, and /nonexistent/bus cannot be used"), "{error}");
}
