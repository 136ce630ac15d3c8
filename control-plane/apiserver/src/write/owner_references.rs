//! Owner references that an object has more than once: the repeats are dropped, and the client is warned.

use corten_admission::Touched;
use corten_meta::Value;

use super::scope::Scope;

/// Drops the repeats of a create or an update, before admission.
pub fn drop_repeated(scope: &Scope<'_>, object: &mut Value) {
    if let Some((kept, uids)) = without_repeats(object) {
        corten_meta::set(object, "/metadata/ownerReferences", Value::from(kept));
        warn(scope, "", &uids);
    }
}

/// Drops the repeats of a patch or of admission.
pub fn drop_repeated_by_admission(scope: &Scope<'_>, object: &mut Touched) {
    if let Some((kept, uids)) = without_repeats(object) {
        corten_meta::set(object, "/metadata/ownerReferences", Value::from(kept));
        warn(scope, " after mutating admission happens", &uids);
    }
}

fn warn(scope: &Scope<'_>, when: &str, uids: &[String]) {
    scope.context.warn(format!(
        ".metadata.ownerReferences contains duplicate entries{when}; API server dedups owner references in 1.20+, and \
         may reject such requests as early as 1.24; please fix your requests; duplicate UID(s) observed: {}",
        uids.join(", ")
    ));
}

/// Returns the owners without their repeats, and the uids of the repeats, if there are any.
fn without_repeats(object: &Value) -> Option<(Vec<Value>, Vec<String>)> {
    let owners = object.pointer("/metadata/ownerReferences")?.as_array()?;
    let mut kept: Vec<Value> = Vec::new();
    let mut uids = Vec::new();
    for owner in owners {
        if kept.contains(owner) {
            uids.push(owner["uid"].as_str().unwrap_or_default().to_owned());
        } else {
            kept.push(owner.clone());
        }
    }
    (!uids.is_empty()).then_some((kept, uids))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::without_repeats;

    #[test]
    fn only_the_same_owner_is_a_repeat() {
        let owner = |name: &str| json!({"apiVersion": "v1", "kind": "Node", "name": name, "uid": "u"});
        let of = |owners: &[&str]| {
            let owners: Vec<_> = owners.iter().map(|name| owner(name)).collect();
            without_repeats(&json!({"metadata": {"ownerReferences": owners}}))
        };
        assert_eq!(of(&["a", "b"]), None);
        assert_eq!(of(&["a", "b", "a"]), Some((vec![owner("a"), owner("b")], vec!["u".to_owned()])));
        assert_eq!(without_repeats(&json!({"metadata": {}})), None);
    }
}
