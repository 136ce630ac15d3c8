//! Legacy token Secrets, some of them unused.
//!
//! No Secret is marked or deleted that was used within a year, that a pod mounts, or that a user created; at the end
//! every Secret that was unused for a year is marked, and deleted after another.

use std::collections::BTreeMap;

use corten_meta::Value;
use http::Method;
use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;
use serde_json::json;

use super::cluster::{World, collection, path_of, play};
use super::server::{Invariant, Server, Write};
use super::{Random, SETTLED, any, delete, now, touch};
use crate::tests::model::Model;

pub const WORLD: World = World {
    controllers: &["legacy-serviceaccount-token-cleaner-controller"],
    begins,
    happens,
    invariant,
    at_rest,
    // Each Secret is reconciled once a day.
    pace: std::time::Duration::from_secs(2 * 60 * 60),
    round: std::time::Duration::from_secs(60 * 60),
    steps: 150,
    ..World::USUAL
};

const CLEANER: &str = "legacy-service-account-token-cleaner";
const LAST_USED: &str = "kubernetes.io/legacy-token-last-used";
const INVALID_SINCE: &str = "kubernetes.io/legacy-token-invalid-since";
const SECRETS: usize = 12;

fn begins(server: &Server, random: &mut Random) {
    let mut objects = vec![json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default"}})];
    let tracked = if random.chance(80) { "2024-01-01" } else { "2025-12-01" };
    objects.push(json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"since": tracked},
        "metadata": {"namespace": "kube-system", "name": "kube-apiserver-legacy-service-account-token-tracking"}}));
    let (mut listed, turned) = (Vec::new(), random.next(SECRETS));
    for number in 0..SECRETS {
        // Most are old and unused, and others each time.
        let (name, number) = (format!("t{number}"), number + turned);
        let created = if number % 5 == 4 { "2025-12-01T00:00:00Z" } else { "2024-06-01T00:00:00Z" };
        let used = [Value::Null, json!("2024-03-01"), json!("2025-11-01")][number % 3].clone();
        let invalid = [Value::Null, json!("2024-10-01"), json!("2025-10-01"), Value::Null][number % 4].clone();
        let mut labels = json!({});
        corten_meta::patch::merge_patch(&mut labels, &json!({LAST_USED: used, INVALID_SINCE: invalid}));
        objects.push(json!({"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/service-account-token",
            "metadata": {"namespace": "default", "name": name, "creationTimestamp": created, "labels": labels,
                "annotations": {"kubernetes.io/service-account.name": "a"}}}));
        if number % 4 != 1 || random.chance(50) {
            listed.push(json!({"name": name}));
        }
    }
    objects.extend([user("p0", random), user("p1", random)]);
    objects
        .push(json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"namespace": "default", "name": "a"},
        "secrets": listed}));
    let mut state = server.state();
    objects.into_iter().for_each(|object| state.api.model.put(object));
    state.publish("user");
}

/// Returns a pod that mounts one of the Secrets.
fn user(name: &str, random: &mut Random) -> Value {
    let volumes = json!([{"name": "v", "secret": {"secretName": format!("t{}", random.next(SECRETS))}}]);
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "default", "name": name},
        "spec": {"volumes": volumes, "containers": [{"name": "c", "image": "i"}]}})
}

fn happens(server: &Server, random: &mut Random) {
    let secret = format!("t{}", random.next(SECRETS));
    match random.next(24) {
        0 => {
            let new = user(&format!("p{}", random.next(3)), random);
            let _ = server.ask("user", Method::POST, &collection(&new), &new);
        }
        1 => {
            if let Some(pod) = any(server, random, "Pod") {
                delete(server, &pod, None);
            }
        }
        // A client uses the token, and the server records it.
        2 => {
            let today = now().to_zoned(TimeZone::UTC).date().to_string();
            let noted = json!({"metadata": {"labels": {LAST_USED: today, INVALID_SINCE: null}}});
            let _ =
                server.ask("apiserver", Method::PATCH, &format!("/api/v1/namespaces/default/secrets/{secret}"), &noted);
        }
        3 => {
            let Some(mut account) = any(server, random, "ServiceAccount") else { return };
            let mut listed = account["secrets"].as_array().cloned().unwrap_or_default();
            match listed.iter().position(|one| one["name"] == secret) {
                Some(place) => drop(listed.remove(place)),
                None => listed.push(json!({ "name": secret })),
            }
            account["secrets"] = json!(listed);
            let _ = server.ask("user", Method::PUT, &path_of(&account), &account);
        }
        _ => {
            let kind = ["Secret", "Pod", "ServiceAccount"][random.next(3)];
            touch(server, random, kind);
        }
    }
}

/// Reports whether a Secret is unused, as far as the API shows.
fn is_unused(model: &Model, secret: &Value) -> bool {
    let limit = now().checked_sub(jiff::SignedDuration::from_hours(24 * 365)).expect("a time");
    let day = limit.to_zoned(TimeZone::UTC).date();
    let date = |text: &Value| text.as_str().and_then(|text| text.parse::<Date>().ok());
    let tracking = "kube-apiserver-legacy-service-account-token-tracking";
    let since = date(&model.value("ConfigMap", "kube-system", tracking)["data"]["since"]);
    let created: Option<Timestamp> =
        secret["metadata"]["creationTimestamp"].as_str().and_then(|text| text.parse().ok());
    let name = corten_meta::name(secret);
    let account = model.value("ServiceAccount", "default", "a");
    let listed = account["secrets"].as_array().is_some_and(|all| all.iter().any(|one| one["name"] == name));
    since.is_some_and(|since| since < day)
        && created.is_some_and(|created| created < limit)
        && date(&secret["metadata"]["labels"][LAST_USED]).is_none_or(|used| used < day)
        && listed
        && !mounted(model).contains(&name.to_owned())
}

fn mounted(model: &Model) -> Vec<String> {
    let pods = model.keys("Pod").into_iter().map(|key| model.value("Pod", &key.namespace, &key.name));
    let secret = |pod: Value| pod["spec"]["volumes"][0]["secret"]["secretName"].as_str().map(str::to_owned);
    pods.filter_map(secret).collect()
}

/// Reports whether a Secret has been marked for a year.
fn is_overdue(secret: &Value) -> bool {
    let limit = now().checked_sub(jiff::SignedDuration::from_hours(24 * 365)).expect("a time");
    let marked = secret["metadata"]["labels"][INVALID_SINCE].as_str().and_then(|text| text.parse::<Date>().ok());
    marked.is_some_and(|marked| marked < limit.to_zoned(TimeZone::UTC).date())
}

fn invariant() -> Invariant {
    // Whether each Secret is unused, and since when; every cache shows the initial state.
    let mut known: BTreeMap<String, (bool, Timestamp)> = BTreeMap::new();
    Box::new(move |write: &Write<'_>| {
        if write.who != CLEANER {
            if write.after.find("ServiceAccount", "default", "a").is_none() {
                return Ok(());
            }
            for key in write.after.keys("Secret") {
                let unused = is_unused(write.after, &write.after.value("Secret", &key.namespace, &key.name));
                let entry = known.entry(key.name).or_insert((unused, Timestamp::UNIX_EPOCH));
                if entry.0 != unused {
                    *entry = (unused, now());
                }
            }
            return Ok(());
        }
        let (Some(old), "Secret") = (&write.old, write.kind) else { return Err("it made something".to_owned()) };
        match known.get(corten_meta::name(old)) {
            Some((false, since)) if now().duration_since(*since) > SETTLED => {
                return Err(format!("it was touched though it is needed: {old}"));
            }
            _ => {}
        }
        if write.new.is_none() && !is_overdue(old) {
            return Err(format!("it went before it had been marked for a year: {old}"));
        }
        Ok(())
    })
}

fn at_rest(server: &Server) -> Result<(), String> {
    let state = server.state();
    let model = &state.api.model;
    for key in model.keys("Secret") {
        let secret = model.value("Secret", &key.namespace, &key.name);
        let marked = !secret["metadata"]["labels"][INVALID_SINCE].is_null();
        if is_unused(model, &secret) && (!marked || is_overdue(&secret)) {
            return Err(format!("{key} is used by nobody and as before: {secret}"));
        }
    }
    Ok(())
}

#[test]
fn only_tokens_that_nobody_used_for_a_year_are_marked_and_go() {
    play(&WORLD);
}
