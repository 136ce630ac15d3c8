//! Impersonation: the `Impersonate-*` headers, each of which must be authorized.

use corten_access::{Attributes, User};
use corten_meta::Status;
use corten_meta::quote::quote;
use http::HeaderMap;

use crate::authentication::header_string;
use crate::authorization::Authorization;
use crate::request::percent_decode;

const EXTRA: &str = "impersonate-extra-";

/// Returns the user that the request acts as. Without the headers it is the user itself.
pub async fn impersonate(authorization: &Authorization, user: User, headers: &HeaderMap) -> Result<User, Status> {
    let one = |name: &str| headers.get(name).map(header_string).unwrap_or_default();
    let name = &*one("impersonate-user");
    let uid = &*one("impersonate-uid");
    let groups: Vec<String> = headers.get_all("impersonate-group").iter().map(header_string).collect();
    let extra = read_extra(headers);
    if name.is_empty() {
        if groups.is_empty() && uid.is_empty() && extra.is_empty() {
            return Ok(user);
        }
        return Err(Status::bad_request(without_name(uid, &groups, &extra)));
    }
    let mut target = User { name: name.to_owned(), uid: uid.to_owned(), groups, ..User::default() };
    let account = name.strip_prefix("system:serviceaccount:").and_then(|rest| rest.split_once(':'));
    if let Some((namespace, account)) = account
        && target.groups.is_empty()
    {
        // A ServiceAccount is in its groups also if the client names none.
        let itself = User::service_account(namespace, account);
        check_user(authorization, &user, &target).await?;
        target.groups = itself.groups;
    } else {
        check_user(authorization, &user, &target).await?;
    }
    for (key, values) in extra {
        for value in &values {
            let attributes = Attributes {
                group: "authentication.k8s.io",
                resource: "userextras",
                subresource: &key,
                name: value,
                ..Attributes::resource(&user, "impersonate")
            };
            authorization.check(&attributes).await?;
        }
        target.extra.insert(key, values);
    }
    add_groups(&mut target);
    Ok(if target.is_in("system:unauthenticated") { target } else { target.authenticated() })
}

/// Adds the groups that some names are always in, when the client requests none.
fn add_groups(target: &mut User) {
    if target.name == "system:anonymous" && !target.is_in("system:unauthenticated") {
        target.groups.push("system:unauthenticated".to_owned());
    }
    let account = target.name.strip_prefix("system:serviceaccount:").and_then(|rest| rest.split_once(':'));
    if let Some((namespace, _)) = account.filter(|_| target.groups.is_empty()) {
        target.groups = vec!["system:serviceaccounts".to_owned(), format!("system:serviceaccounts:{namespace}")];
    }
}

/// Returns upstream's error for headers that impersonate everything but a user name.
fn without_name(uid: &str, groups: &[String], extra: &[(String, Vec<String>)]) -> String {
    let list = |values: &[String]| match values {
        [] => "[]string(nil)".to_owned(),
        values => format!("[]string{{{}}}", values.iter().map(quote).collect::<Vec<_>>().join(", ")),
    };
    let map = match extra {
        [] => "map[string][]string(nil)".to_owned(),
        extra => {
            let entries: Vec<String> =
                extra.iter().map(|(key, values)| format!("{key}:{}", list(values), key = quote(key))).collect();
            format!("map[string][]string{{{}}}", entries.join(", "))
        }
    };
    let groups = list(groups);
    let user = format!("&user.DefaultInfo{{Name:\"\", UID:{}, Groups:{groups}, Extra:{map}}}", quote(uid));
    format!("requested {user} without impersonating a user name")
}

async fn check_user(authorization: &Authorization, user: &User, target: &User) -> Result<(), Status> {
    let base = Attributes::resource(user, "impersonate");
    match target.name.strip_prefix("system:serviceaccount:").and_then(|rest| rest.split_once(':')) {
        Some((namespace, name)) => {
            authorization.check(&Attributes { resource: "serviceaccounts", namespace, name, ..base.clone() }).await?;
        }
        None => authorization.check(&Attributes { resource: "users", name: &target.name, ..base.clone() }).await?,
    }
    for group in &target.groups {
        authorization.check(&Attributes { resource: "groups", name: group, ..base.clone() }).await?;
    }
    if !target.uid.is_empty() {
        let group = "authentication.k8s.io";
        authorization.check(&Attributes { group, resource: "uids", name: &target.uid, ..base }).await?;
    }
    Ok(())
}

fn read_extra(headers: &HeaderMap) -> Vec<(String, Vec<String>)> {
    headers
        .keys()
        .filter_map(|name| name.as_str().strip_prefix(EXTRA).map(|key| (name, percent_decode(key, false))))
        .map(|(name, key)| {
            let values = headers.get_all(name).iter().map(header_string);
            (key, values.collect())
        })
        .collect()
}
