//! The readiness of allocated devices.

use super::*;

#[test]
fn a_pod_waits_for_its_devices_to_be_ready() {
    let ready = |conditions: &str| {
        let claim = testkit_fixture::typed::<ResourceClaim>(&format!(
            "resourceclaim c status.allocation.devices.results=[{{request: r, driver: d, pool: p, device: x, \
             bindingConditions: [Attached], bindingFailureConditions: [Broken]}}] \
             status.devices=[{{driver: d, pool: p, device: x, conditions: [{conditions}]}}]"
        ));
        is_ready(&claim)
    };
    let condition = |kind: &str, status: &str| {
        format!("{{type: {kind}, status: \"{status}\", reason: R, message: m, lastTransitionTime: now}}")
    };
    assert_eq!(ready(""), Ok(false));
    assert_eq!(ready(&condition("Attached", "False")), Ok(false));
    let attached = condition("Attached", "True");
    assert_eq!(ready(&format!("{attached}, {}", condition("Broken", "False"))), Ok(true));
    let why = "device binding failed: claim=c, reason=R, message=\"m\"";
    assert_eq!(ready(&format!("{attached}, {}", condition("Broken", "True"))), Err(why.to_owned()));
}
