//! The state of enforcement on one node, and its application to the kernel.
//!
//! Changes of objects only change the wanted state; [`Enforcer::sync`] sends one batch. Chains are never changed: pods
//! move to a new chain and the old one is deleted, within the same batch, so that no packet meets half a policy. The
//! first sync, and any after a refused batch, replaces the tables.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

use corten_meta::{Key, Labels};
use corten_nftables::{Batch, Chain, Element, Socket, Verdict};
use tracing::warn;

use super::chains::{Group, Side};
use super::members::{Members, Subject};
use super::objects::{Direction, Pod, Policy};
use super::{Config, LocalPod, Sandbox};
use crate::error::Error;

/// The chains, and the addresses of this node's pods that lead to them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Structure {
    chains: BTreeMap<u32, Group>,
    assigned: BTreeMap<(Direction, IpAddr), u32>,
    own: BTreeSet<IpAddr>,
    subjects: BTreeMap<u32, Subject>,
}

pub(crate) struct Enforcer {
    config: Config,
    sides: Vec<Side>,
    policies: BTreeMap<Key, Policy>,
    members: Members,
    /// The pods of this node by sandbox.
    local: BTreeMap<String, LocalPod>,
    ids: HashMap<Group, u32>,
    next: u32,
    /// The structure in the kernel; `None` if unknown.
    applied: Option<Structure>,
    /// Whether the structure may differ from the applied one.
    dirty: bool,
    socket: Socket,
}

impl Enforcer {
    pub fn new(config: Config) -> Result<Enforcer, Error> {
        let sides = config.sides();
        Ok(Enforcer {
            config,
            sides,
            policies: BTreeMap::new(),
            members: Members::default(),
            local: BTreeMap::new(),
            ids: HashMap::new(),
            next: 0,
            applied: None,
            dirty: true,
            socket: Socket::open()?,
        })
    }

    pub fn set_policy(&mut self, key: Key, policy: Option<Policy>) {
        if self.policies.get(&key) == policy.as_ref() {
            return;
        }
        self.dirty = true;
        match policy {
            Some(policy) => drop(self.policies.insert(key, policy)),
            None => drop(self.policies.remove(&key)),
        }
    }

    pub fn set_pod(&mut self, key: &Key, pod: Option<Pod>) {
        for local in self.local.values_mut().filter(|local| local.key == *key) {
            // Kept for the time after the object: a pod that was deleted by force still runs for a while.
            if let Some(pod) = pod.as_ref().filter(|pod| pod.uid == local.uid) {
                local.labels.clone_from(&pod.labels);
            }
        }
        if self.members.set_pod(key, pod) && self.local.values().any(|local| local.key == *key) {
            self.dirty = true;
        }
    }

    pub fn set_namespace(&mut self, name: &str, labels: Option<Labels>) {
        self.members.set_namespace(name, labels);
    }

    /// Adds the addresses of a pod of this node.
    pub fn attach(&mut self, sandbox: Sandbox) {
        let Sandbox { id, pod } = sandbox;
        self.local.retain(|other, held| *other == id || !held.addresses.iter().any(|a| pod.addresses.contains(a)));
        self.local.insert(id, pod);
        self.dirty = true;
    }

    pub fn detach(&mut self, sandbox: &str) {
        self.dirty |= self.local.remove(sandbox).is_some();
    }

    /// Reports whether the policies that select a pod of this node are known.
    pub fn knows(&self, local: &LocalPod) -> bool {
        local.static_pod || self.object(local).is_some()
    }

    /// Returns the object of a pod of this node; an object of the same name and another uid is another pod.
    fn object(&self, local: &LocalPod) -> Option<&Pod> {
        self.members.pod(&local.key).filter(|pod| local.uid.is_empty() || pod.uid == local.uid)
    }

    pub fn is_dirty(&self) -> bool {
        self.dirty || self.applied.is_none() || self.members.has_changes()
    }

    /// Checks whether another program deleted a table, as a restarted firewall service does.
    pub fn check(&mut self) -> Result<(), Error> {
        let tables = self.socket.tables()?;
        if self.applied.is_some() && !self.sides.iter().all(|side| tables.contains(&side.table(&self.config.table))) {
            warn!(table = self.config.table, "the table of the network policies was deleted by another program");
            self.applied = None;
        }
        Ok(())
    }

    /// Applies the wanted state to the kernel, in one batch; returns its size in bytes.
    pub fn sync(&mut self) -> Result<usize, Error> {
        let wanted =
            if self.dirty { self.structure() } else { self.applied.clone().unwrap_or_else(|| self.structure()) };
        if let Some(before) = self.applied.take() {
            let batch = self.change(&before, &wanted);
            let bytes = batch.len();
            match self.socket.apply(batch) {
                Ok(()) => return Ok(self.done(wanted, bytes)),
                Err(error) => warn!("replacing the tables, because a change of them was refused: {error}"),
            }
        }
        let batch = self.full_batch(&wanted);
        let bytes = batch.len();
        self.socket.apply(batch)?;
        Ok(self.done(wanted, bytes))
    }

    fn done(&mut self, structure: Structure, bytes: usize) -> usize {
        self.members.clear_changes();
        self.applied = Some(structure);
        self.dirty = false;
        bytes
    }

    /// Returns the chains that the pods of this node need.
    fn structure(&mut self) -> Structure {
        let mut structure = Structure::default();
        let mut used: HashMap<Group, u32> = HashMap::new();
        for local in self.local.values() {
            structure.own.extend(&local.addresses);
            for direction in Direction::ALL {
                let Some(group) = self.group(local, direction) else { continue };
                let id = *used.entry(group).or_insert_with_key(|group| {
                    self.ids.get(group).copied().unwrap_or_else(|| {
                        self.next += 1;
                        self.next
                    })
                });
                structure.assigned.extend(local.addresses.iter().map(|address| ((direction, *address), id)));
            }
        }
        let subjects: Vec<Subject> = used.keys().flat_map(Group::subjects).collect();
        let kept = subjects.iter().filter_map(|subject| Some((self.members.id(subject)?, subject.clone()))).collect();
        self.members.retain(&kept, subjects.iter().cloned());
        structure.subjects =
            subjects.into_iter().filter_map(|subject| Some((self.members.id(&subject)?, subject))).collect();
        structure.chains = used.iter().map(|(group, id)| (*id, group.clone())).collect();
        self.ids = used;
        structure
    }

    /// Returns the sum of the policies that isolate a pod; `None` if none does. The labels of a pod without an object
    /// are those of the kubelet, or the last ones of the object.
    fn group(&self, local: &LocalPod, direction: Direction) -> Option<Group> {
        let labels = self.object(local).map_or(&local.labels, |pod| &pod.labels);
        let first = Key::new(local.key.namespace.clone(), "");
        let own = self.policies.range(first..).take_while(|(key, _)| key.namespace == local.key.namespace);
        let selecting = own.filter(|(_, policy)| policy.pods.matches(labels));
        let mut group: Option<Group> = None;
        for rules in selecting.filter_map(|(_, policy)| policy.rules(direction)) {
            let group = group.get_or_insert_with(|| Group { direction, allowed: Vec::new() });
            for allowed in rules {
                if !group.allowed.contains(allowed) {
                    group.allowed.push(allowed.clone());
                }
            }
        }
        group.filter(|group| !group.allows_everything())
    }

    fn full_batch(&self, wanted: &Structure) -> Batch {
        let mut batch = Batch::new();
        for side in [Side { ipv4: true }, Side { ipv4: false }] {
            if self.sides.contains(&side) {
                side.skeleton(&mut batch, &self.config);
            }
        }
        self.put(&mut batch, &Structure::default(), wanted);
        batch
    }

    fn change(&self, before: &Structure, wanted: &Structure) -> Batch {
        let mut batch = Batch::new();
        self.put(&mut batch, before, wanted);
        batch
    }

    fn put(&self, batch: &mut Batch, before: &Structure, wanted: &Structure) {
        for side in &self.sides {
            self.put_members(batch, *side, before, wanted);
            self.put_chains(batch, *side, before, wanted);
            self.put_assignments(batch, *side, before, wanted);
            self.delete_chains(batch, *side, before, wanted);
        }
    }

    fn put_members(&self, batch: &mut Batch, side: Side, before: &Structure, wanted: &Structure) {
        let table = side.table(&self.config.table);
        for (id, subject) in &wanted.subjects {
            let Some(members) = self.members.sets().get(id) else { continue };
            let set = side.member_set(subject, *id);
            if !before.subjects.contains_key(id) {
                batch.add_set(&table, &set);
                let elements: Vec<Element> =
                    members.members().filter_map(|member| side.member(subject, member)).collect();
                batch.add_elements(&table, &set, &elements);
                continue;
            }
            let changed = |wanted: bool| -> Vec<Element> {
                let changes = members.changes().iter().filter(|(_, added)| **added == wanted);
                changes.filter_map(|(member, _)| side.member(subject, member)).collect()
            };
            batch.delete_elements(&table, &set, &changed(false));
            batch.add_elements(&table, &set, &changed(true));
        }
    }

    fn put_chains(&self, batch: &mut Batch, side: Side, before: &Structure, wanted: &Structure) {
        let table = side.table(&self.config.table);
        for (id, group) in wanted.chains.iter().filter(|(id, _)| !before.chains.contains_key(id)) {
            let compiled = side.compile(group, *id, &|subject| self.members.id(subject));
            for (set, elements) in &compiled.sets {
                batch.add_set(&table, set);
                batch.add_elements(&table, set, elements);
            }
            let chain = group.chain(*id);
            batch.add_chain(&table, &Chain::regular(&chain));
            for rule in &compiled.rules {
                batch.add_rule(&table, &chain, rule);
            }
        }
    }

    fn put_assignments(&self, batch: &mut Batch, side: Side, before: &Structure, wanted: &Structure) {
        let table = side.table(&self.config.table);
        for direction in Direction::ALL {
            let elements = |of: &Structure, other: &Structure| -> Vec<Element> {
                let differs = |(key, id): &(&(Direction, IpAddr), &u32)| other.assigned.get(key) != Some(id);
                let ours = of.assigned.iter().filter(|((d, address), _)| *d == direction && side.holds(*address));
                ours.filter(differs)
                    .map(|((_, address), id)| {
                        let chain = Group { direction, allowed: Vec::new() }.chain(*id);
                        Element::verdict(*address, Verdict::Jump(chain))
                    })
                    .collect()
            };
            batch.delete_elements(&table, &side.verdicts(direction), &elements(before, wanted));
            batch.add_elements(&table, &side.verdicts(direction), &elements(wanted, before));
        }
        let own = |of: &Structure, other: &Structure| -> Vec<Element> {
            let differing = of.own.difference(&other.own).filter(|address| side.holds(**address));
            differing.map(|address| side.own_element(*address)).collect()
        };
        batch.delete_elements(&table, &side.own(), &own(before, wanted));
        batch.add_elements(&table, &side.own(), &own(wanted, before));
    }

    fn delete_chains(&self, batch: &mut Batch, side: Side, before: &Structure, wanted: &Structure) {
        let table = side.table(&self.config.table);
        let number = |subject: &Subject| before.subjects.iter().find(|(_, s)| *s == subject).map(|(id, _)| *id);
        for (id, group) in before.chains.iter().filter(|(id, _)| !wanted.chains.contains_key(id)) {
            let chain = group.chain(*id);
            batch.flush_chain(&table, &chain);
            batch.delete_chain(&table, &chain);
            for (set, _) in side.compile(group, *id, &number).sets {
                batch.delete_set(&table, set.name());
            }
        }
        for (id, subject) in before.subjects.iter().filter(|(id, _)| !wanted.subjects.contains_key(id)) {
            batch.delete_set(&table, side.member_set(subject, *id).name());
        }
    }
}
