//! Tests of leases, maintenance, members and TLS.

#![allow(clippy::unwrap_used, reason = "a test stops at what it does not expect")]

mod support;

use std::io::{Seek, Write};

use corten_etcd::etcdserverpb::alarm_request::AlarmAction;
use corten_etcd::etcdserverpb::{
    AlarmRequest, AlarmType, DefragmentRequest, HashKvRequest, LeaseGrantRequest, LeaseKeepAliveRequest,
    LeaseLeasesRequest, LeaseRevokeRequest, LeaseTimeToLiveRequest, MemberAddRequest, MemberListRequest,
    MemberRemoveRequest, PutRequest, SnapshotRequest, StatusRequest,
};
use corten_store::snapshot;
use tonic::Code;

use support::{one, serve, span};

#[tokio::test]
async fn a_lease_holds_its_keys_and_takes_them_along() {
    let served = serve().await;
    let grant = |ttl, id| {
        let mut lease = served.lease();
        async move { lease.lease_grant(LeaseGrantRequest { ttl, id }).await }
    };
    let granted = grant(100, 7).await.unwrap().into_inner();
    assert_eq!((granted.id, granted.ttl), (7, 100));
    let exists = grant(100, 7).await.unwrap_err();
    assert_eq!((exists.code(), exists.message()), (Code::FailedPrecondition, "etcdserver: lease already exists"));
    let large = grant(9_000_000_001, 0).await.unwrap_err();
    assert_eq!((large.code(), large.message()), (Code::OutOfRange, "etcdserver: too large lease TTL"));
    let chosen = grant(-5, 0).await.unwrap().into_inner();
    assert!(chosen.id != 0 && chosen.ttl > 0, "{chosen:?}");

    let put = PutRequest { key: "a".into(), lease: 7, ..Default::default() };
    served.kv().put(put).await.unwrap();
    let ask = LeaseTimeToLiveRequest { id: 7, keys: true };
    let alive = served.lease().lease_time_to_live(ask).await.unwrap().into_inner();
    assert_eq!((alive.granted_ttl, alive.keys), (100, vec!["a".into()]));
    let listed = served.lease().lease_leases(LeaseLeasesRequest {}).await.unwrap().into_inner();
    let mut ids: Vec<i64> = listed.leases.iter().map(|lease| lease.id).collect();
    ids.sort_unstable();
    assert_eq!(ids, [7, chosen.id]);

    let ids = futures::stream::iter([7, 99].map(|id| LeaseKeepAliveRequest { id }));
    let mut kept = served.lease().lease_keep_alive(ids).await.unwrap().into_inner();
    let mut answers = Vec::new();
    while let Some(answer) = kept.message().await.unwrap() {
        answers.push((answer.id, answer.ttl));
    }
    assert_eq!(answers, [(7, 100), (99, 0)]);

    served.lease().lease_revoke(LeaseRevokeRequest { id: 7 }).await.unwrap();
    assert_eq!(served.kv().range(one("a")).await.unwrap().into_inner().kvs, []);
    let gone = served.lease().lease_revoke(LeaseRevokeRequest { id: 7 }).await.unwrap_err();
    assert_eq!((gone.code(), gone.message()), (Code::NotFound, "etcdserver: requested lease not found"));
    let ask = LeaseTimeToLiveRequest { id: 7, keys: false };
    assert_eq!(served.lease().lease_time_to_live(ask).await.unwrap().into_inner().ttl, -1);
}

#[tokio::test]
async fn the_one_member_describes_itself_and_stays_alone() {
    let served = serve().await;
    let status = served.maintenance().status(StatusRequest {}).await.unwrap().into_inner();
    assert_eq!(status.version, corten_etcd_server::VERSION);
    assert!(status.db_size > 0 && status.errors.is_empty());
    let members = served.cluster().member_list(MemberListRequest::default()).await.unwrap().into_inner().members;
    assert_eq!((members.len(), members[0].id), (1, status.leader));
    served.maintenance().defragment(DefragmentRequest {}).await.unwrap();
    let alarms = served.maintenance().alarm(AlarmRequest::default()).await.unwrap().into_inner();
    assert_eq!(alarms.alarms, []);
    let alarm = |action: AlarmAction, alarm: AlarmType| {
        let mut maintenance = served.maintenance();
        async move { maintenance.alarm(AlarmRequest { action: action.into(), member_id: 0, alarm: alarm.into() }).await }
    };
    let corrupt = alarm(AlarmAction::Activate, AlarmType::Corrupt).await.unwrap_err();
    assert_eq!(corrupt.code(), Code::FailedPrecondition);
    // An alarm stops writes, and only them.
    let raised = alarm(AlarmAction::Activate, AlarmType::Nospace).await.unwrap().into_inner();
    assert_eq!(raised.alarms.len(), 1);
    let put = || PutRequest { key: "frozen".into(), ..Default::default() };
    let refused = served.kv().put(put()).await.unwrap_err();
    assert_eq!(
        (refused.code(), refused.message()),
        (Code::ResourceExhausted, "etcdserver: mvcc: database space exceeded")
    );
    assert_eq!(served.kv().range(one("frozen")).await.unwrap().into_inner().kvs, []);
    let disarmed = alarm(AlarmAction::Deactivate, AlarmType::Nospace).await.unwrap().into_inner();
    assert_eq!(disarmed.alarms, []);
    served.kv().put(put()).await.unwrap();
    served
        .kv()
        .delete_range(corten_etcd::etcdserverpb::DeleteRangeRequest { key: "frozen".into(), ..Default::default() })
        .await
        .unwrap();
    let added = served.cluster().member_add(MemberAddRequest::default()).await.unwrap_err();
    assert!(added.message().contains("one member"), "{added}");
    let removed = served.cluster().member_remove(MemberRemoveRequest { id: 1 }).await.unwrap_err();
    assert_eq!(removed.code(), Code::FailedPrecondition);
}

#[tokio::test]
async fn a_snapshot_has_everything_in_the_store() {
    let served = serve().await;
    for number in 0..300 {
        served.put(&format!("key{number}"), &"v".repeat(number)).await;
    }
    let mut stream = served.maintenance().snapshot(SnapshotRequest {}).await.unwrap().into_inner();
    let mut file = tempfile::NamedTempFile::new().unwrap();
    let mut last = u64::MAX;
    while let Some(part) = stream.message().await.unwrap() {
        assert!(part.remaining_bytes < last);
        last = part.remaining_bytes;
        file.write_all(&part.blob).unwrap();
    }
    assert_eq!(last, 0);
    file.rewind().unwrap();
    let contents = snapshot::load(file.path(), snapshot::Limits::default()).unwrap();
    assert_eq!(contents, served.store.contents());
    let hash = served.maintenance().hash_kv(HashKvRequest { revision: 100 }).await.unwrap().into_inner();
    assert_eq!((hash.hash, hash.hash_revision), (snapshot::hash(&contents, 100), 100));
    let future = served.maintenance().hash_kv(HashKvRequest { revision: 1000 }).await.unwrap_err();
    assert_eq!(future.code(), Code::OutOfRange);
}

#[tokio::test]
async fn a_socket_is_for_its_owner_alone() {
    use std::os::unix::fs::PermissionsExt;
    let served = serve().await;
    assert_eq!(std::fs::metadata(&served.socket).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(served.kv().range(span("a", "b")).await.unwrap().into_inner().count, 0);
}
