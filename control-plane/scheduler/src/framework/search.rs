//! The result of filtering.

use super::{Reasons, Verdict};

/// A rejected node, with the plugin and its verdict.
#[derive(Debug)]
pub struct Rejected {
    pub slot: usize,
    pub plugin: &'static str,
    pub verdict: Verdict,
}

/// The result of filtering.
#[derive(Debug, Default)]
pub struct Search {
    pub feasible: Vec<usize>,
    pub rejected: Vec<Rejected>,
    /// The plugins and the verdict for the nodes that were not visited.
    pub absent: Option<(Vec<&'static str>, Verdict)>,
    /// Whether a pre-filter plugin rejected the pod before any node was visited.
    pub refused: bool,
    /// Whether extenders rejected nodes.
    pub by_extender: bool,
    /// Whether only the nominated node was visited, because it is feasible.
    pub nominated: bool,
    /// The error for which the pod cannot be decided about.
    pub error: Option<String>,
    /// The number of nodes that each plugin rejected.
    pub refusals: Vec<(&'static str, usize)>,
    /// Whether every node was visited, and the result depends only on the nodes' own rows.
    pub repeatable: bool,
}

impl Search {
    /// Records that a plugin rejected a node.
    pub fn reject(&mut self, slot: usize, plugin: &'static str, verdict: Verdict) {
        self.count(plugin);
        self.rejected.push(Rejected { slot, plugin, verdict });
    }

    /// Records that a plugin failed: earlier results do not count.
    pub fn fail(&mut self, plugin: &'static str, why: &Reasons) {
        self.feasible.clear();
        self.error = Some(format!("running {plugin:?} filter plugin: {}", why.text()));
    }

    fn count(&mut self, plugin: &'static str) {
        // A plugin's name is one static string: comparing addresses is enough, and this runs for every node.
        match self.refusals.iter_mut().find(|(name, _)| std::ptr::eq(*name, plugin)) {
            Some((_, count)) => *count += 1,
            None => self.refusals.push((plugin, 1)),
        }
    }

    /// Replaces the verdict of a rejected node.
    pub fn replace(&mut self, number: usize, plugin: &'static str, verdict: Verdict) {
        let before = std::mem::replace(&mut self.rejected[number].plugin, plugin);
        self.rejected[number].verdict = verdict;
        self.refusals.iter_mut().filter(|(name, _)| *name == before).for_each(|(_, count)| *count -= 1);
        self.count(plugin);
        self.refusals.retain(|(_, count)| *count > 0);
    }

    /// Returns the plugin that rejected the pod before any node was visited, and its verdict.
    pub fn refusal(&self) -> Option<(&'static str, &Verdict)> {
        let (plugins, verdict) = self.absent.as_ref().filter(|_| self.refused)?;
        Some((plugins.first()?, verdict))
    }
}
