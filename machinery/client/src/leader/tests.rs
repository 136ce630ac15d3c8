//! Tests of elections among candidates on one server. Time is paused, so that leases cost nothing.

use super::*;
use crate::fake::FakeServer;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

struct Candidate {
    shutdown: CancellationToken,
    cut: Arc<std::sync::atomic::AtomicBool>,
    running: JoinHandle<Outcome>,
}

/// Starts a candidate that reports when it begins and stops to lead.
fn candidate(server: &FakeServer, identity: &'static str, news: &mpsc::UnboundedSender<String>) -> Candidate {
    let (client, cut) = server.cable();
    let shutdown = CancellationToken::new();
    let elector = LeaderElector::new(client, LeaderConfig::new("kube-system", "test", identity));
    let news = news.clone();
    let running = tokio::spawn(elector.run(shutdown.clone(), move |stop| async move {
        news.send(format!("{identity} leads")).unwrap();
        stop.cancelled().await;
        news.send(format!("{identity} stops")).unwrap();
    }));
    Candidate { shutdown, cut, running }
}

async fn within(seconds: u64, news: &mut mpsc::UnboundedReceiver<String>) -> String {
    tokio::time::timeout(Duration::from_secs(seconds), news.recv()).await.expect("news in time").unwrap()
}

fn lease(server: &FakeServer) -> serde_json::Value {
    server.object("leases", "kube-system", "test").unwrap().value()["spec"].clone()
}

#[tokio::test(start_paused = true)]
async fn a_clean_stop_hands_over_at_once() {
    let server = FakeServer::default();
    let (sender, mut news) = mpsc::unbounded_channel();
    let a = candidate(&server, "a", &sender);
    assert_eq!(within(1, &mut news).await, "a leads");
    let b = candidate(&server, "b", &sender);
    let quiet = tokio::time::timeout(Duration::from_secs(120), news.recv()).await;
    assert!(quiet.is_err(), "a renews, b waits");
    a.shutdown.cancel();
    assert_eq!(a.running.await.unwrap(), Outcome::Stopped);
    assert_eq!(within(1, &mut news).await, "a stops");
    assert_eq!(within(1, &mut news).await, "b leads");
    let spec = lease(&server);
    assert_eq!((spec["holderIdentity"].as_str(), spec["leaseTransitions"].as_i64()), (Some("b"), Some(1)));
    b.shutdown.cancel();
    assert_eq!(b.running.await.unwrap(), Outcome::Stopped);
    assert_eq!(lease(&server)["holderIdentity"], "");
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_is_cut_off_stops_before_another_leads() {
    let server = FakeServer::default();
    let (sender, mut news) = mpsc::unbounded_channel();
    let a = candidate(&server, "a", &sender);
    assert_eq!(within(1, &mut news).await, "a leads");
    let b = candidate(&server, "b", &sender);
    tokio::time::sleep(Duration::from_secs(30)).await;
    a.cut.store(true, Ordering::SeqCst);
    let start = Instant::now();
    assert_eq!(within(13, &mut news).await, "a stops");
    assert_eq!(a.running.await.unwrap(), Outcome::Lost);
    assert_eq!(within(10, &mut news).await, "b leads");
    assert!(start.elapsed() >= Duration::from_secs(11), "b waited for the lease: {:?}", start.elapsed());
    drop(b);
}

#[tokio::test(start_paused = true)]
async fn a_finished_leader_releases_the_lease() {
    let server = FakeServer::default();
    let elector = LeaderElector::new(server.client(), LeaderConfig::new("kube-system", "test", "a"));
    assert_eq!(elector.run(CancellationToken::new(), |_| async {}).await, Outcome::Finished);
    assert_eq!(lease(&server)["holderIdentity"], "");
}

#[test]
fn a_free_or_expired_lease_may_be_taken() {
    let config = LeaderConfig::new("", "", "me");
    let since = Instant::now();
    let spec = |holder: &str| LeaseSpec { holder_identity: Some(holder.into()), ..LeaseSpec::default() };
    for (holder, after, expected) in
        [("", 0, true), ("me", 0, true), ("other", 0, false), ("other", 14, false), ("other", 15, true)]
    {
        let now = since + Duration::from_secs(after);
        assert_eq!(may_take(&spec(holder), since, now, &config), expected, "{holder} after {after}");
    }
}
