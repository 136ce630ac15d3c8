//! The IP families of a Service: its policy, families and addresses, completed with the cluster's families. Pure: the
//! cluster's families are an argument, the primary one first.

use corten_meta::{FieldError, Path, Value};
use serde_json::json;

const SINGLE: &str = "SingleStack";
const PREFER: &str = "PreferDualStack";
const REQUIRE: &str = "RequireDualStack";
const IPV4: &str = "IPv4";
const IPV6: &str = "IPv6";

/// Returns the family of an address.
pub fn of_address(ip: &str) -> &'static str {
    if ip.contains(':') { IPV6 } else { IPV4 }
}

/// Returns the strings of a list in the spec.
pub fn strings(service: &Value, field: &str) -> Vec<String> {
    let list = service["spec"][field].as_array().into_iter().flatten();
    list.filter_map(Value::as_str).map(str::to_owned).collect()
}

fn policy(service: &Value) -> &str {
    service["spec"]["ipFamilyPolicy"].as_str().unwrap_or_default()
}

fn is_headless(service: &Value) -> bool {
    service["spec"]["clusterIP"] == "None"
}

fn has_selector(service: &Value) -> bool {
    service["spec"]["selector"].as_object().is_some_and(|selector| !selector.is_empty())
}

/// Completes policy and families of a Service that has addresses, or returns the errors.
pub fn complete(service: &mut Value, old: Option<&Value>, configured: &[&'static str]) -> Result<(), Vec<FieldError>> {
    if old.is_some_and(|old| stays_preferred(service, old)) {
        return Ok(());
    }
    let mut errors = corten_api::validate_service_addresses(service, old);
    if !errors.is_empty() {
        return Err(errors);
    }
    default_policy(service, old);
    if let Some(old) = old {
        release_second(service, old, &mut errors);
    }
    refuse_second_of_single(service, &mut errors);
    infer_families(service, configured, &mut errors);
    if !errors.is_empty() {
        return Err(errors);
    }
    let free_choice = is_headless(service) && !has_selector(service);
    if !free_choice {
        refuse_missing(service, configured, &mut errors);
    }
    if errors.is_empty() { Ok(()) } else { Err(errors) }.map(|()| {
        let mut families = strings(service, "ipFamilies");
        if families.is_empty() {
            families.extend(configured.first().map(|family| (*family).to_owned()));
        }
        // Endpoints without a selector may be of any family, whatever the cluster has.
        if policy(service) != SINGLE && families.len() == 1 && (free_choice || configured.len() == 2) {
            families.push(if families[0] == IPV4 { IPV6 } else { IPV4 }.to_owned());
        }
        service["spec"]["ipFamilies"] = json!(families);
    })
}

/// Reports whether a Service with PreferDualStack keeps its families: the update requests no others, though the cluster
/// may have changed.
fn stays_preferred(service: &Value, old: &Value) -> bool {
    let same = |field: &str| strings(service, field) == strings(old, field);
    let preferred = |service: &Value| policy(service) == PREFER;
    let typed = service["spec"]["type"] == old["spec"]["type"];
    typed && preferred(service) && preferred(old) && same("clusterIPs") && same("ipFamilies")
}

fn default_policy(service: &mut Value, old: Option<&Value>) {
    if !policy(service).is_empty() {
        return;
    }
    let before = old.map(policy).filter(|policy| !policy.is_empty());
    let usual = if is_headless(service) && !has_selector(service) { REQUIRE } else { SINGLE };
    service["spec"]["ipFamilyPolicy"] = before.unwrap_or(usual).into();
}

/// Removes the second family on an update to SingleStack; without that policy, its removal is an error.
fn release_second(service: &mut Value, old: &Value, errors: &mut Vec<FieldError>) {
    for (field, what) in [("clusterIPs", "cluster IP"), ("ipFamilies", "IP family")] {
        let new = strings(service, field);
        let before = strings(old, field);
        if policy(service) == SINGLE {
            if new == before && new.len() > 1 {
                service["spec"][field] = json!([new[0]]);
            }
        } else if !new.is_empty() && new.len() < before.len() {
            let detail = format!("must be 'SingleStack' to release the secondary {what}");
            errors.push(FieldError::invalid(&at("ipFamilyPolicy"), policy(service), detail));
        }
    }
}

fn refuse_second_of_single(service: &Value, errors: &mut Vec<FieldError>) {
    if policy(service) != SINGLE {
        return;
    }
    for (field, what) in [("clusterIPs", "cluster IPs"), ("ipFamilies", "IP families")] {
        if strings(service, field).len() == 2 {
            let detail = format!("must be 'RequireDualStack' or 'PreferDualStack' when multiple {what} are specified");
            errors.push(FieldError::invalid(&at("ipFamilyPolicy"), policy(service), detail));
        }
    }
}

/// Infers the families of addresses that have none in the spec.
fn infer_families(service: &mut Value, configured: &[&str], errors: &mut Vec<FieldError>) {
    let addresses = strings(service, "clusterIPs");
    let mut families = strings(service, "ipFamilies");
    for (index, ip) in addresses.iter().enumerate().skip(families.len()) {
        if ip == "None" {
            break;
        }
        let family = of_address(ip);
        if configured.contains(&family) {
            families.push(family.to_owned());
        } else {
            let detail = format!("{family} is not configured on this cluster");
            errors.push(FieldError::invalid(&at("clusterIPs").index(index), json!(addresses), detail));
        }
    }
    if !families.is_empty() {
        service["spec"]["ipFamilies"] = json!(families);
    }
}

fn refuse_missing(service: &Value, configured: &[&str], errors: &mut Vec<FieldError>) {
    if policy(service) == REQUIRE && configured.len() < 2 {
        let detail = "this cluster is not configured for dual-stack services";
        errors.push(FieldError::invalid(&at("ipFamilyPolicy"), REQUIRE, detail));
    }
    for (index, family) in strings(service, "ipFamilies").iter().enumerate() {
        if !configured.contains(&family.as_str()) {
            let path = at("ipFamilies").index(index);
            errors.push(FieldError::invalid(&path, family.clone(), "not configured on this cluster"));
        }
    }
}

fn at(field: &str) -> Path {
    Path::root("spec").child(field)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOTH: &[&str] = &[IPV4, IPV6];

    fn outcome(spec: Value, old: Option<Value>, configured: &[&'static str]) -> String {
        let mut service = json!({ "spec": spec });
        let old = old.map(|spec| json!({ "spec": spec }));
        match complete(&mut service, old.as_ref(), configured) {
            Ok(()) => format!("{} {}", policy(&service), strings(&service, "ipFamilies").join(",")),
            Err(errors) => errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "),
        }
    }

    #[test]
    fn new_services_get_the_families_of_the_cluster() {
        let selector = json!({"a": "b"});
        for (spec, configured, expected) in [
            (json!({}), &[IPV4][..], "SingleStack IPv4"),
            (json!({}), &[IPV6, IPV4], "SingleStack IPv6"),
            (json!({"ipFamilyPolicy": PREFER}), &[IPV4], "PreferDualStack IPv4"),
            (json!({"ipFamilyPolicy": PREFER}), BOTH, "PreferDualStack IPv4,IPv6"),
            (json!({"ipFamilyPolicy": REQUIRE, "ipFamilies": [IPV6]}), BOTH, "RequireDualStack IPv6,IPv4"),
            (json!({"ipFamilies": [IPV6]}), BOTH, "SingleStack IPv6"),
            (json!({"clusterIP": "fd00::1", "clusterIPs": ["fd00::1"]}), BOTH, "SingleStack IPv6"),
            (json!({"clusterIP": "None", "clusterIPs": ["None"]}), &[IPV4], "RequireDualStack IPv4,IPv6"),
            (json!({"clusterIP": "None", "clusterIPs": ["None"], "selector": selector}), BOTH, "SingleStack IPv4"),
            (
                json!({"clusterIP": "None", "clusterIPs": ["None"], "selector": selector, "ipFamilyPolicy": PREFER}),
                BOTH,
                "PreferDualStack IPv4,IPv6",
            ),
        ] {
            assert_eq!(outcome(spec.clone(), None, configured), expected, "{spec}");
        }
    }

    #[test]
    fn a_family_that_the_cluster_lacks_is_refused() {
        for (spec, expected) in [
            (json!({"ipFamilyPolicy": REQUIRE}), "this cluster is not configured for dual-stack services"),
            (
                json!({"ipFamilies": [IPV6]}),
                "spec.ipFamilies[0]: Invalid value: \"IPv6\": not configured on this cluster",
            ),
            (json!({"clusterIP": "fd00::1", "clusterIPs": ["fd00::1"]}), "IPv6 is not configured on this cluster"),
            (json!({"ipFamilies": BOTH}), "when multiple IP families are specified"),
        ] {
            let outcome = outcome(spec.clone(), None, &[IPV4]);
            assert!(outcome.contains(expected), "{spec}: {outcome}");
        }
    }

    #[test]
    fn the_second_family_comes_and_goes_with_the_policy() {
        let one = |policy: &str| json!({"ipFamilyPolicy": policy, "ipFamilies": [IPV4], "clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"]});
        let two = |policy: &str| json!({"ipFamilyPolicy": policy, "ipFamilies": BOTH, "clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1", "fd00::1"]});
        for (new, old, expected) in [
            (one(REQUIRE), one(SINGLE), "RequireDualStack IPv4,IPv6"),
            (two(SINGLE), two(REQUIRE), "SingleStack IPv4"),
            (one(PREFER), one(PREFER), "PreferDualStack IPv4"),
            (one(PREFER), one(SINGLE), "PreferDualStack IPv4,IPv6"),
        ] {
            assert_eq!(outcome(new.clone(), Some(old), BOTH), expected, "{new}");
        }
        let refused = outcome(one(REQUIRE), Some(two(REQUIRE)), BOTH);
        assert!(refused.contains("must be 'SingleStack' to release the secondary cluster IP"), "{refused}");
    }
}
