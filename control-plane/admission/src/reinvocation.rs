//! The second round of mutation: after a plugin changed the object, earlier webhooks and policies may see it again,
//! once.

use std::collections::{BTreeMap, BTreeSet};

use corten_meta::Value;

/// The state of the first round that the second round needs.
#[derive(Default)]
pub struct Reinvocation {
    /// Whether this is the second round.
    pub again: bool,
    /// Whether a second round is requested.
    wanted: bool,
    plugins: BTreeMap<&'static str, Calls>,
}

/// The calls of one plugin: webhooks or policies, by their ids.
#[derive(Default)]
struct Calls {
    /// The calls that were made and may be repeated.
    repeatable: BTreeSet<String>,
    /// The calls to repeat, because the object changed after them.
    due: BTreeSet<String>,
    /// The object after the plugin's round.
    output: Value,
}

impl Calls {
    fn make_due(&mut self) {
        self.due.append(&mut self.repeatable);
    }
}

impl Reinvocation {
    /// Starts the second round, if it is requested, and reports whether it did.
    pub fn next(&mut self) -> bool {
        self.again = self.wanted && !self.again;
        self.again
    }

    /// Begins a plugin's round. If other plugins changed the object since, all its calls are due again.
    pub fn begin(&mut self, plugin: &'static str, object: &Value) {
        let again = self.again;
        let calls = self.plugins.entry(plugin).or_default();
        if again && calls.output != *object {
            calls.make_due();
        }
    }

    /// Ends a plugin's round.
    pub fn end(&mut self, plugin: &'static str, object: &Value) {
        self.plugins.entry(plugin).or_default().output = object.clone();
    }

    /// Reports whether a call may be repeated in the second round.
    pub fn may_call_again(&self, plugin: &'static str, id: &str) -> bool {
        self.plugins.get(plugin).is_some_and(|calls| calls.due.contains(id))
    }

    /// Records a call, which may be repeated if it has an id here. If it changed the object, all earlier calls are due
    /// again; it has itself seen its own change.
    pub fn called(&mut self, plugin: &'static str, repeatable: Option<&String>, changed: bool) {
        let calls = self.plugins.entry(plugin).or_default();
        if changed {
            calls.make_due();
        }
        calls.repeatable.extend(repeatable.cloned());
        self.wanted |= changed;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_call_before_a_change_is_repeated_once() {
        let mut r = Reinvocation::default();
        r.begin("p", &json!(0));
        r.called("p", Some(&"first".to_owned()), false);
        r.called("p", Some(&"second".to_owned()), true);
        r.end("p", &json!(1));
        assert!(r.next());
        r.begin("p", &json!(1));
        assert!(r.may_call_again("p", "first"));
        assert!(!r.may_call_again("p", "second"));
        assert!(!r.next());
    }

    #[test]
    fn a_change_by_others_makes_all_due() {
        let mut r = Reinvocation::default();
        r.begin("p", &json!(0));
        r.called("p", Some(&"only".to_owned()), false);
        r.end("p", &json!(0));
        r.called("q", None, true);
        assert!(r.next());
        r.begin("p", &json!(2));
        assert!(r.may_call_again("p", "only"));
    }
}
