//! Legacy token Secrets, which the cluster once generated: those that no client used for a year are marked invalid, and
//! deleted after another year.
//!
//! Only a Secret that its ServiceAccount lists was generated; a Secret that a user created is never changed. Nothing
//! happens before the API server has tracked uses for a whole year: until then unused Secrets are not known.

use std::collections::BTreeSet;
use std::time::Duration;

use corten_api::Typed;
use corten_api::k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret, ServiceAccount, Volume};
use corten_meta::Key;
use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp, ToSpan};
use serde_json::json;

use crate::runtime::{Action, Controller, Plan, View, Watch};

const TYPE: &str = "kubernetes.io/service-account-token";
const ACCOUNT: &str = "kubernetes.io/service-account.name";
const ACCOUNT_UID: &str = "kubernetes.io/service-account.uid";
const LAST_USED: &str = "kubernetes.io/legacy-token-last-used";
const INVALID_SINCE: &str = "kubernetes.io/legacy-token-invalid-since";
const TRACKING: &str = "kube-apiserver-legacy-service-account-token-tracking";
const UNUSED: SignedDuration = SignedDuration::from_hours(24 * 365);
const LOOK_AGAIN: Duration = Duration::from_secs(24 * 60 * 60);

pub struct LegacyTokenCleaner;

pub struct Observed {
    secret: Secret,
    /// The date since which uses are tracked.
    tracked_since: Option<Date>,
    /// Whether the ServiceAccount lists the Secret.
    is_generated: bool,
    is_mounted: bool,
}

impl Controller for LegacyTokenCleaner {
    type Observed = Observed;

    const NAME: &'static str = "legacy-service-account-token-cleaner";

    fn watches(&self) -> Vec<Watch> {
        vec![Watch::own::<Secret>(), Watch::read::<ServiceAccount>(), Watch::read::<Pod>(), Watch::read::<ConfigMap>()]
    }

    fn observe(&self, view: &dyn View, key: &Key) -> Option<Observed> {
        let secret: Secret = view.typed(key)?;
        if secret.type_.as_deref() != Some(TYPE) || secret.metadata.deletion_timestamp.is_some() {
            return None;
        }
        let tracking: Option<ConfigMap> = view.typed(&Key::new("kube-system", TRACKING));
        let tracked_since = tracking.and_then(|map| map.data?.get("since")?.parse().ok());
        let is_generated = account_of(view, &secret).is_some_and(|account| {
            account.secrets.iter().flatten().any(|one| one.name.as_deref() == Some(secret.name()))
        });
        // The pods that mount it are listed only for the few Secrets that could be removed.
        let is_mounted =
            is_generated && view.all::<Pod>(&key.namespace).iter().any(|pod| secrets_of(pod).contains(&key.name));
        Some(Observed { secret, tracked_since, is_generated, is_mounted })
    }

    fn reconcile(&self, observed: &Observed, now: Timestamp) -> Plan {
        let again = Plan::later(LOOK_AGAIN);
        let Some(limit) = now.checked_sub(UNUSED).ok() else { return again };
        let last_day = limit.to_zoned(TimeZone::UTC).date();
        let tracked = observed.tracked_since.and_then(|day| day.checked_add(1.day()).ok());
        let meta = &observed.secret.metadata;
        let label = |key: &str| meta.labels.as_ref().and_then(|labels| labels.get(key));
        let used_lately = label(LAST_USED).is_some_and(|day| day.parse::<Date>().is_ok_and(|day| day >= last_day));
        let unreadable = label(LAST_USED).is_some_and(|day| day.parse::<Date>().is_err());
        let young = meta.creation_timestamp.as_ref().is_none_or(|created| created.0 >= limit);
        let stays = tracked.is_none_or(|day| day > last_day) || young || used_lately || unreadable;
        if stays || !observed.is_generated || observed.is_mounted {
            return again;
        }
        let mut plan = again;
        match label(INVALID_SINCE).and_then(|day| day.parse::<Date>().ok()) {
            None => {
                let today = now.to_zoned(TimeZone::UTC).date().to_string();
                plan.push(Action::patch(&observed.secret, json!({"metadata": {"labels": {INVALID_SINCE: today}}})));
            }
            Some(day) if day < last_day => plan.push(Action::delete(&observed.secret)),
            Some(_) => {}
        }
        plan
    }
}

fn account_of(view: &dyn View, secret: &Secret) -> Option<ServiceAccount> {
    let annotation = |key: &str| secret.metadata.annotations.as_ref()?.get(key).cloned();
    let account: ServiceAccount = view.typed(&Key::new(secret.namespace(), annotation(ACCOUNT)?))?;
    let uid = annotation(ACCOUNT_UID).filter(|uid| !uid.is_empty());
    (uid.is_none() || uid == account.metadata.uid).then_some(account)
}

/// Returns every Secret that a pod references.
fn secrets_of(pod: &Pod) -> BTreeSet<String> {
    let Some(spec) = &pod.spec else { return BTreeSet::new() };
    let mut names: BTreeSet<String> = spec.image_pull_secrets.iter().flatten().map(|one| one.name.clone()).collect();
    for container in spec.containers.iter().chain(spec.init_containers.iter().flatten()) {
        let sources = container.env_from.iter().flatten().filter_map(|one| one.secret_ref.as_ref());
        names.extend(sources.map(|one| one.name.clone()));
        let keys = container.env.iter().flatten().filter_map(|one| one.value_from.as_ref()?.secret_key_ref.as_ref());
        names.extend(keys.map(|one| one.name.clone()));
    }
    names.extend(spec.volumes.iter().flatten().flat_map(secrets_of_volume));
    names
}

fn secrets_of_volume(volume: &Volume) -> Vec<String> {
    let plain = volume.secret.as_ref().and_then(|source| source.secret_name.clone());
    let projected = volume.projected.iter().flat_map(|source| source.sources.iter().flatten());
    let projected = projected.filter_map(|one| one.secret.as_ref()).map(|one| one.name.clone());
    let driver = volume.csi.as_ref().and_then(|source| source.node_publish_secret_ref.as_ref());
    projected.chain(plain).chain(driver.map(|one| one.name.clone())).collect()
}
