//! The second round of mutation: a plugin that changed the object may make earlier ones look at it again, once.

use std::collections::{BTreeMap, BTreeSet};

use corten_meta::Value;

/// What the second round must know about the first.
#[derive(Default)]
pub struct Reinvocation {
    /// Whether this is the second round.
    pub again: bool,
    /// Whether there shall be one.
    wanted: bool,
    plugins: BTreeMap<&'static str, Calls>,
}

/// The calls of one plugin: webhooks or policies, by their ids.
#[derive(Default)]
struct Calls {
    /// Called, and willing to be called again.
    willing: BTreeSet<String>,
    /// To be called again, because something changed after them.
    due: BTreeSet<String>,
    /// What the plugin left behind.
    output: Value,
}

impl Calls {
    fn owe(&mut self) {
        self.due.append(&mut self.willing);
    }
}

impl Reinvocation {
    /// Goes into the second round, if one is wanted.
    pub fn next(&mut self) -> bool {
        self.again = self.wanted && !self.again;
        self.again
    }

    /// A plugin begins. If other plugins changed the object since, all that it called is due again.
    pub fn begin(&mut self, plugin: &'static str, object: &Value) {
        let again = self.again;
        let calls = self.plugins.entry(plugin).or_default();
        if again && calls.output != *object {
            calls.owe();
        }
    }

    /// A plugin is done with this round.
    pub fn end(&mut self, plugin: &'static str, object: &Value) {
        self.plugins.entry(plugin).or_default().output = object.clone();
    }

    /// Whether something may be called in the second round.
    pub fn may_call_again(&self, plugin: &'static str, id: &str) -> bool {
        self.plugins.get(plugin).is_some_and(|calls| calls.due.contains(id))
    }

    /// Something was called, and is willing to be called again if it has an id here. If it changed the object, all that
    /// was called before is due again; it has itself seen what it did.
    pub fn called(&mut self, plugin: &'static str, willing: Option<&String>, changed: bool) {
        let calls = self.plugins.entry(plugin).or_default();
        if changed {
            calls.owe();
        }
        calls.willing.extend(willing.cloned());
        self.wanted |= changed;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn who_ran_before_a_change_runs_again_once() {
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
