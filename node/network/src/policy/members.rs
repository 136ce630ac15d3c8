//! The addresses of the peers and named ports that the policies in force select.
//!
//! A pod that is added, changed or deleted affects its own sets only; the cost follows from the number of different
//! selectors, never from the number of pods.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

use corten_meta::{Key, Labels};

use super::objects::{Namespaces, Pod, PodPeer, PortName};

/// The selector of a set of addresses.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Subject {
    Peer(PodPeer),
    Port(PortName),
}

/// An address, with the port that a port name means there; peers have no port.
pub(crate) type Member = (IpAddr, Option<u16>);

#[derive(Debug)]
pub(crate) struct MemberSet {
    pub subject: Subject,
    /// The number of pods per member: an address may pass to a new pod before the old one is deleted.
    members: BTreeMap<Member, usize>,
    /// The members that are not in the kernel yet: added or removed.
    changes: BTreeMap<Member, bool>,
}

impl MemberSet {
    pub fn members(&self) -> impl Iterator<Item = &Member> {
        self.members.keys()
    }

    pub fn changes(&self) -> &BTreeMap<Member, bool> {
        &self.changes
    }

    fn add(&mut self, member: Member) {
        let count = self.members.entry(member).or_default();
        *count += 1;
        if *count == 1 {
            self.change(member, true);
        }
    }

    fn remove(&mut self, member: Member) {
        let Some(count) = self.members.get_mut(&member) else { return };
        *count -= 1;
        if *count == 0 {
            self.members.remove(&member);
            self.change(member, false);
        }
    }

    fn change(&mut self, member: Member, added: bool) {
        // A member that is added and removed between two syncs is no change.
        if self.changes.remove(&member).is_none() {
            self.changes.insert(member, added);
        }
    }
}

/// The cluster's pods, and the sets they are members of.
#[derive(Debug, Default)]
pub(crate) struct Members {
    pods: HashMap<Key, Pod>,
    by_namespace: HashMap<String, BTreeSet<String>>,
    namespaces: HashMap<String, Labels>,
    sets: BTreeMap<u32, MemberSet>,
    ids: HashMap<Subject, u32>,
    next: u32,
}

impl Members {
    pub fn pod(&self, key: &Key) -> Option<&Pod> {
        self.pods.get(key)
    }

    pub fn sets(&self) -> &BTreeMap<u32, MemberSet> {
        &self.sets
    }

    pub fn has_changes(&self) -> bool {
        self.sets.values().any(|set| !set.changes.is_empty())
    }

    /// Clears the changes: the kernel has all of them.
    pub fn clear_changes(&mut self) {
        self.sets.values_mut().for_each(|set| set.changes.clear());
    }

    /// Returns the id of a subject that is in use.
    pub fn id(&self, subject: &Subject) -> Option<u32> {
        self.ids.get(subject).copied()
    }

    /// Keeps exactly these subjects; fills new ones.
    pub fn retain(&mut self, subjects: &BTreeMap<u32, Subject>, new: impl IntoIterator<Item = Subject>) {
        self.sets.retain(|id, _| subjects.contains_key(id));
        self.ids.retain(|_, id| subjects.contains_key(id));
        for subject in new {
            if self.ids.contains_key(&subject) {
                continue;
            }
            let mut set = MemberSet { subject: subject.clone(), members: BTreeMap::new(), changes: BTreeMap::new() };
            for (key, pod) in &self.pods {
                let labels = self.namespaces.get(&key.namespace);
                contribution(&subject, key, pod, labels).into_iter().for_each(|member| set.add(member));
            }
            set.changes.clear();
            self.next += 1;
            self.ids.insert(subject, self.next);
            self.sets.insert(self.next, set);
        }
    }

    /// Updates a pod; returns whether its labels or uid changed.
    pub fn set_pod(&mut self, key: &Key, pod: Option<Pod>) -> bool {
        let before = match &pod {
            Some(pod) => {
                self.by_namespace.entry(key.namespace.clone()).or_default().insert(key.name.clone());
                self.pods.insert(key.clone(), pod.clone())
            }
            None => {
                if let Some(names) = self.by_namespace.get_mut(&key.namespace) {
                    names.remove(&key.name);
                    if names.is_empty() {
                        self.by_namespace.remove(&key.namespace);
                    }
                }
                self.pods.remove(key)
            }
        };
        if before == pod {
            return false;
        }
        let labels = self.namespaces.get(&key.namespace);
        for set in self.sets.values_mut() {
            let of = |pod: &Option<Pod>, subject: &Subject| {
                pod.as_ref().map(|pod| contribution(subject, key, pod, labels)).unwrap_or_default()
            };
            let gone = of(&before, &set.subject);
            let come = of(&pod, &set.subject);
            come.into_iter().for_each(|member| set.add(member));
            gone.into_iter().for_each(|member| set.remove(member));
        }
        let identity = |pod: &Option<Pod>| pod.as_ref().map(|pod| (pod.uid.clone(), pod.labels.clone()));
        identity(&before) != identity(&pod)
    }

    /// Updates a namespace's labels.
    pub fn set_namespace(&mut self, name: &str, labels: Option<Labels>) {
        let before = match labels.clone() {
            Some(labels) => self.namespaces.insert(name.to_owned(), labels),
            None => self.namespaces.remove(name),
        };
        if before == labels {
            return;
        }
        for pod_name in self.by_namespace.get(name).into_iter().flatten() {
            let key = Key::new(name, pod_name);
            let Some(pod) = self.pods.get(&key) else { continue };
            for set in self.sets.values_mut() {
                let come = contribution(&set.subject, &key, pod, labels.as_ref());
                let gone = contribution(&set.subject, &key, pod, before.as_ref());
                come.into_iter().for_each(|member| set.add(member));
                gone.into_iter().for_each(|member| set.remove(member));
            }
        }
    }
}

/// Returns the members that a pod adds to a subject.
fn contribution(subject: &Subject, key: &Key, pod: &Pod, labels: Option<&Labels>) -> Vec<Member> {
    match subject {
        Subject::Peer(peer) => {
            let namespace = match &peer.namespaces {
                Namespaces::Named(name) => *name == key.namespace,
                Namespaces::Matching(selector) => labels.is_some_and(|labels| selector.matches(labels)),
            };
            let matches = namespace && peer.pods.matches(&pod.labels);
            pod.addresses.iter().filter(|_| matches).map(|address| (*address, None)).collect()
        }
        Subject::Port(wanted) => {
            let ports = pod.ports.iter().filter(|(name, _)| name == wanted);
            ports.flat_map(|(_, port)| pod.addresses.iter().map(|address| (*address, Some(*port)))).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use corten_meta::Selector;

    fn labels(pairs: &str) -> Labels {
        let pairs = pairs.split(',').filter_map(|pair| pair.split_once('='));
        Labels::new(pairs.map(|(k, v)| (k.to_owned(), v.to_owned())).collect())
    }

    fn pod(pairs: &str, address: &str) -> Option<Pod> {
        let addresses = vec![address.parse().unwrap()];
        Some(Pod { labels: labels(pairs), addresses, ..Pod::default() })
    }

    fn peer(namespaces: &str, pods: &str) -> Subject {
        let namespaces = Namespaces::Matching(Selector::parse(namespaces).unwrap());
        Subject::Peer(PodPeer { namespaces, pods: Selector::parse(pods).unwrap() })
    }

    fn take_changes(members: &mut Members) -> Vec<String> {
        let changes = members.sets.values().flat_map(|set| &set.changes);
        let changes =
            changes.map(|((address, _), added)| format!("{}{address}", if *added { "+" } else { "-" })).collect();
        members.clear_changes();
        changes
    }

    #[test]
    fn only_changes_are_reported() {
        let mut members = Members::default();
        members.set_namespace("shop", Some(labels("team=a")));
        members.set_pod(&Key::new("shop", "web"), pod("app=web", "10.0.0.1"));
        members.retain(&BTreeMap::new(), [peer("team=a", "app=web")]);
        assert_eq!(members.sets.values().next().unwrap().members().count(), 1);
        assert_eq!(take_changes(&mut members), [""; 0]);

        // An address passes from one pod to another without a gap, in either order of events.
        members.set_pod(&Key::new("shop", "web2"), pod("app=web", "10.0.0.1"));
        members.set_pod(&Key::new("shop", "web"), None);
        assert_eq!(take_changes(&mut members), [""; 0]);
        members.set_pod(&Key::new("shop", "web3"), pod("app=web", "10.0.0.2"));
        assert_eq!(take_changes(&mut members), ["+10.0.0.2"]);
        members.set_pod(&Key::new("shop", "web3"), pod("app=other", "10.0.0.2"));
        assert_eq!(take_changes(&mut members), ["-10.0.0.2"]);
        members.set_namespace("shop", Some(labels("team=b")));
        assert_eq!(take_changes(&mut members), ["-10.0.0.1"]);
        members.set_namespace("shop", Some(labels("team=a")));
        members.set_namespace("shop", None);
        assert_eq!(take_changes(&mut members), [""; 0]);
    }

    #[test]
    fn unused_subjects_are_removed() {
        let mut members = Members::default();
        members.retain(&BTreeMap::new(), [peer("", "a=b"), peer("", "c=d")]);
        let kept: BTreeMap<u32, Subject> =
            members.ids.iter().filter(|(s, _)| **s == peer("", "a=b")).map(|(s, id)| (*id, s.clone())).collect();
        members.retain(&kept, []);
        assert_eq!(members.sets.len(), 1);
        assert_eq!(members.id(&peer("", "c=d")), None);
        assert!(members.id(&peer("", "a=b")).is_some());
    }
}
