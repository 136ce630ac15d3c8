//! What filtering found.

use super::{Reasons, Verdict};

/// A node that will not do: who said so and why.
#[derive(Debug)]
pub struct Rejected {
    pub slot: usize,
    pub plugin: &'static str,
    pub verdict: Verdict,
}

/// What filtering found.
#[derive(Debug, Default)]
pub struct Search {
    pub feasible: Vec<usize>,
    pub rejected: Vec<Rejected>,
    /// What holds for the nodes that were not looked at.
    pub absent: Option<(Vec<&'static str>, Verdict)>,
    /// A plugin refused before any node was looked at.
    pub refused: bool,
    /// Extenders that refused nodes.
    pub by_extender: bool,
    /// Only the node that the pod is nominated to was looked at, for it will do.
    pub nominated: bool,
    /// Why the pod cannot be decided about.
    pub error: Option<String>,
    /// How many nodes each plugin refused.
    pub refusals: Vec<(&'static str, usize)>,
    /// Every node was looked at, and what was found hangs on nothing but the nodes' own rows.
    pub repeatable: bool,
}

impl Search {
    /// Notes that a plugin refused a node.
    pub fn reject(&mut self, slot: usize, plugin: &'static str, verdict: Verdict) {
        self.count(plugin);
        self.rejected.push(Rejected { slot, plugin, verdict });
    }

    /// A plugin failed: whatever was found before does not count.
    pub fn fail(&mut self, plugin: &'static str, why: &Reasons) {
        self.feasible.clear();
        self.error = Some(format!("running {plugin:?} filter plugin: {}", why.text()));
    }

    fn count(&mut self, plugin: &'static str) {
        // A plugin's name is one text in memory: comparing addresses is enough, and this is done for every node.
        match self.refusals.iter_mut().find(|(name, _)| std::ptr::eq(*name, plugin)) {
            Some((_, count)) => *count += 1,
            None => self.refusals.push((plugin, 1)),
        }
    }

    /// A rejected node is rejected otherwise.
    pub fn replace(&mut self, number: usize, plugin: &'static str, verdict: Verdict) {
        let before = std::mem::replace(&mut self.rejected[number].plugin, plugin);
        self.rejected[number].verdict = verdict;
        self.refusals.iter_mut().filter(|(name, _)| *name == before).for_each(|(_, count)| *count -= 1);
        self.count(plugin);
        self.refusals.retain(|(_, count)| *count > 0);
    }

    /// The plugin that refused before any node was looked at, and its words.
    pub fn refusal(&self) -> Option<(&'static str, &Verdict)> {
        let (plugins, verdict) = self.absent.as_ref().filter(|_| self.refused)?;
        Some((plugins.first()?, verdict))
    }
}
