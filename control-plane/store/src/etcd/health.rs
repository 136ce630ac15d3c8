//! Checks of the members at an interval: which of them serve, the alarms of the cluster, and the size of its data.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use corten_etcd::etcdserverpb::alarm_request::AlarmAction;
use corten_etcd::etcdserverpb::maintenance_client::MaintenanceClient;
use corten_etcd::etcdserverpb::{AlarmRequest, AlarmType, StatusResponse};

use super::Shared;
use super::members::Members;
use super::messages::unsigned;
use crate::{Error, Health};

/// The interval of checks.
const INTERVAL: Duration = Duration::from_secs(2);

/// Checks the members until shutdown.
pub(super) async fn run(shared: Arc<Shared>) {
    loop {
        tokio::select! {
            () = shared.shutdown.cancelled() => return,
            () = shared.members.changed() => {}
            () = tokio::time::sleep(INTERVAL) => {}
        }
        let states = shared.members.check_all().await;
        note_size(&shared, &states);
        let health = probe(&shared).await;
        shared.health.send_if_modified(|before| {
            let is_new = *before != health;
            *before = health;
            is_new
        });
    }
}

/// Notes the size of the data, and the space that is left of its quota.
pub(super) fn note_size(shared: &Shared, states: &[StatusResponse]) {
    let largest = states.iter().max_by_key(|state| state.db_size);
    let Some(state) = largest else { return };
    shared.size.store(unsigned(state.db_size), Ordering::Release);
    let quota = unsigned(state.db_size_quota);
    let free = if quota == 0 { u64::MAX } else { quota.saturating_sub(unsigned(state.db_size)) };
    shared.free.store(free, Ordering::Release);
}

/// Returns whether the cluster answers a quorum read and has no alarm that stops writes.
async fn probe(shared: &Shared) -> Health {
    if let Err(error) = super::current::read(&shared.members, &shared.health_key).await {
        return Health::Failing { reason: error.to_string().into() };
    }
    let alarms = match alarms(&shared.members).await {
        Ok(alarms) => alarms,
        Err(error) => return Health::Failing { reason: error.to_string().into() },
    };
    let reason = alarms.first().map(|alarm| match alarm {
        Alarm::NoSpace => "etcdserver: mvcc: database space exceeded (alarm NOSPACE)",
        Alarm::Corrupt => "etcdserver: corrupt cluster (alarm CORRUPT)",
    });
    reason.map_or(Health::Writable, |reason| Health::Failing { reason: reason.into() })
}

/// An alarm that a member raised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alarm {
    /// The database has reached its quota; writes are refused.
    NoSpace,
    /// Members do not have the same data; all requests are refused.
    Corrupt,
}

pub(super) async fn alarms(members: &Members) -> Result<Vec<Alarm>, Error> {
    let request = AlarmRequest { action: AlarmAction::Get.into(), member_id: 0, alarm: AlarmType::None.into() };
    let called = members.call(|channel| async move { MaintenanceClient::new(channel).alarm(request).await });
    let alarms = called.await.answer()?.alarms;
    let known = alarms.iter().filter_map(|alarm| match alarm.alarm() {
        AlarmType::Nospace => Some(Alarm::NoSpace),
        AlarmType::Corrupt => Some(Alarm::Corrupt),
        AlarmType::None => None,
    });
    Ok(known.collect())
}
