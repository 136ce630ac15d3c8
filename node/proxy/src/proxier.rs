//! The state of the proxy for one IP family, and its application to the kernel.
//!
//! Changes of objects only mark Services as dirty; [`Proxier::sync`] computes them and sends one batch. The first sync,
//! and any after a refused batch, replaces the whole table, so leftovers of an earlier run or of a `flush ruleset` do
//! not matter.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use corten_nftables::{Batch, Chain, Element, IpFamily, Socket};
use tracing::{debug, warn};

use crate::chains::{Shape, skeleton};
use crate::claims::{Change, Claims};
use crate::error::Error;
use crate::exposure::Exposure;
use crate::fence::Fence;
use crate::flows;
use crate::health::{Check, Checks};
use crate::iptables::{self, Iptables, Portal};
use crate::ipvs::{self, Ipvs};
use crate::rulebook::Rulebook;
use crate::rules::{Served, Target, desired, served};
use crate::service::{Range, Service, ServiceKey, ServicePort};
use crate::sets::{self, Name};
use crate::slice::{Slice, SliceKey};
use crate::sockets::{self, Sockets};
use crate::topology::NodeTopology;
use crate::{Config, Mode};

/// The result of a sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Synced {
    /// The number of Services that were computed again.
    pub services: usize,
    /// The number of bytes sent to the kernel.
    pub bytes: usize,
    /// Whether the whole table was replaced.
    pub replaced: bool,
}

/// The Services of the cluster in this node's kernel. Belongs to the network namespace of the thread that made it.
pub struct Proxier {
    book: Rulebook,
    topology: NodeTopology,
    services: BTreeMap<ServiceKey, Service>,
    /// The external addresses that Services may have.
    exposure: Exposure,
    /// The slices of each Service; they are few, so a list is the smallest and fast.
    slices: BTreeMap<ServiceKey, Vec<(SliceKey, Slice)>>,
    /// The Service of each slice, to find it when its label changes or the slice is deleted.
    owners: BTreeMap<SliceKey, ServiceKey>,
    dirty: BTreeSet<ServiceKey>,
    /// Services with a health check port.
    checked: BTreeMap<ServiceKey, u16>,
    claims: Claims,
    fence: Fence,
    socket: Socket,
    /// The programs, in that mode.
    iptables: Option<Iptables>,
    /// The programs at sockets, in that mode.
    sockets: Option<Sockets>,
    /// The kernel's load balancer, in that mode.
    ipvs: Option<Ipvs>,
    /// Whether the kernel has everything in `claims`.
    applied: bool,
}

impl Proxier {
    pub fn new(config: Config, ip: IpFamily) -> Result<Proxier, Error> {
        let topology = NodeTopology { node: config.node_name.clone(), zone: None };
        let iptables = match config.mode {
            Mode::Nftables | Mode::Ebpf | Mode::Ipvs => None,
            Mode::Iptables => Some(Iptables::open(ip, config.iptables.as_deref())?),
        };
        let sockets = match (config.mode, &config.cgroup) {
            (Mode::Ebpf, Some(cgroup)) => Some(Sockets::open(ip, cgroup)?),
            _ => None,
        };
        let ipvs = (config.mode == Mode::Ipvs).then(|| Ipvs::open(ip)).transpose()?;
        let mut socket = Socket::open()?;
        let mut fence = Fence::new(ip, &config.service_cidrs);
        fence.sync(&mut socket)?;
        Ok(Proxier {
            exposure: Exposure::new(&config.cluster_cidrs),
            fence,
            ipvs,
            iptables,
            sockets,
            book: Rulebook { ip, config },
            topology,
            services: BTreeMap::new(),
            slices: BTreeMap::new(),
            owners: BTreeMap::new(),
            dirty: BTreeSet::new(),
            checked: BTreeMap::new(),
            claims: Claims::default(),
            socket,
            applied: false,
        })
    }

    pub fn version(&self) -> IpFamily {
        self.book.ip
    }

    /// Updates a Service; `None` if it is deleted or has nothing to proxy.
    pub fn set_service(&mut self, key: ServiceKey, service: Option<Service>) {
        let service = self.exposure.set_service(&key, service, &self.fence);
        self.fence.set_service(&key, service.as_ref().map(|service| service.cluster_ip));
        if self.services.get(&key) == service.as_ref() {
            return;
        }
        match service.as_ref().and_then(|service| service.health_check_port) {
            Some(port) => drop(self.checked.insert(key.clone(), port)),
            None => drop(self.checked.remove(&key)),
        }
        match service {
            Some(service) => drop(self.services.insert(key.clone(), service)),
            None => drop(self.services.remove(&key)),
        }
        self.dirty.insert(key);
    }

    /// Updates the addresses of a node; `None` if it is deleted.
    pub fn set_node(&mut self, name: &str, addresses: Option<Vec<IpAddr>>) {
        if self.exposure.set_node(name, addresses) {
            self.expose_again();
        }
    }

    /// Updates the ranges of a ServiceCIDR; `None` if it is deleted.
    pub fn set_service_cidr(&mut self, name: &str, ranges: Option<Vec<Range>>) {
        if self.fence.set_ranges(name, ranges) {
            self.expose_again();
        }
    }

    /// Decides anew which addresses the Services may have.
    fn expose_again(&mut self) {
        for (key, service) in self.exposure.services() {
            self.set_service(key, Some(service));
        }
    }

    /// Updates an EndpointSlice; `None` if it is deleted or irrelevant.
    pub fn set_slice(&mut self, key: SliceKey, slice: Option<Slice>) {
        let now = slice.as_ref().map(|slice| slice.service.clone());
        if let Some(before) = self.owners.remove(&key)
            && now.as_ref() != Some(&before)
        {
            self.forget_slice(&before, &key);
            self.dirty.insert(before);
        }
        let (Some(owner), Some(slice)) = (now, slice) else { return };
        self.owners.insert(key.clone(), owner.clone());
        let slices = self.slices.entry(owner.clone()).or_insert_with(|| Vec::with_capacity(1));
        match slices.iter_mut().find(|(known, _)| *known == key) {
            Some((_, known)) if *known == slice => return,
            Some((_, known)) => *known = slice,
            None => slices.push((key, slice)),
        }
        self.dirty.insert(owner);
    }

    fn forget_slice(&mut self, owner: &ServiceKey, key: &SliceKey) {
        if let Some(slices) = self.slices.get_mut(owner) {
            slices.retain(|(known, _)| known != key);
            if slices.is_empty() {
                self.slices.remove(owner);
            }
        }
    }

    fn slices_of(&self, key: &ServiceKey) -> impl Iterator<Item = &Slice> + Clone {
        self.slices.get(key).into_iter().flatten().map(|(_, slice)| slice)
    }

    /// Sets the zone of this node; hints of endpoints depend on it.
    pub fn set_zone(&mut self, zone: Option<String>) {
        if self.topology.zone != zone {
            self.topology.zone = zone;
            self.dirty.extend(self.services.keys().cloned());
        }
    }

    /// Checks whether another program deleted the table, as a restarted firewall service does.
    pub fn check(&mut self) -> Result<(), Error> {
        let tables = self.socket.tables()?;
        self.fence.check(&tables);
        if self.iptables.is_some() {
            // Reading the rules costs as much as writing them again.
            self.applied = false;
            return Ok(());
        }
        if self.applied && !tables.contains(&self.book.table()) {
            warn!(table = self.book.config.table, "the table of the Services was deleted by another program");
            self.applied = false;
        }
        if let Some(ipvs) = &mut self.ipvs
            && !ipvs.check()?
        {
            warn!("another program changed the Services of IPVS");
            self.dirty.extend(self.services.keys().cloned());
        }
        Ok(())
    }

    /// Returns the states of the health check ports.
    pub(crate) fn health_checks(&self) -> Checks {
        let check = |key: &ServiceKey, port: u16| Check { port, local_endpoints: self.local_endpoints(key) };
        self.checked.iter().map(|(key, port)| (key.clone(), check(key, *port))).collect()
    }

    /// Counts the ready endpoints on this node, each once.
    fn local_endpoints(&self, key: &ServiceKey) -> usize {
        let slices = self.slices_of(key);
        let endpoints = slices.flat_map(|slice| &slice.endpoints);
        let local = endpoints.filter(|endpoint| endpoint.ready && endpoint.is_local(&self.topology));
        local.map(|endpoint| endpoint.address).collect::<BTreeSet<_>>().len()
    }

    /// Reports whether a sync has something to do.
    pub fn is_dirty(&self) -> bool {
        !self.applied || !self.dirty.is_empty() || self.fence.is_dirty()
    }

    /// Applies the wanted state to the kernel, in one batch.
    pub fn sync(&mut self) -> Result<Synced, Error> {
        self.fence.sync(&mut self.socket)?;
        let dirty = std::mem::take(&mut self.dirty);
        let from_nothing = self.claims.is_empty();
        let change = self.compute(&dirty);
        let mut udp = flows::changed(&change);
        self.sync_sockets(&dirty);
        let applied = self.apply(change, from_nothing);
        let synced = self.sync_ipvs(&dirty);
        let (bytes, replaced) = applied?;
        for key in &dirty {
            if let Some(claimed) = self.claims.claimed(key) {
                flows::complete(&mut udp, claimed);
            }
        }
        match flows::delete_stale(&udp) {
            Ok(0) => {}
            Ok(deleted) => debug!(deleted, "deleted UDP flows of deleted endpoints"),
            Err(error) => warn!("cannot delete UDP flows of deleted endpoints: {error}"),
        }
        synced.map(|()| Synced { services: dirty.len(), bytes, replaced })
    }

    fn compute(&mut self, dirty: &BTreeSet<ServiceKey>) -> Change {
        let mut change = Change::default();
        for key in dirty {
            let mut rules = self.services.get(key).map(|service| desired(service, self.slices_of(key), &self.topology));
            if let (Some(rules), Some(service), true) = (&mut rules, self.services.get(key), self.ipvs.is_some()) {
                rules.elements.insert((Name::Held, Element::key(service.cluster_ip)));
            }
            self.claims.replace(key, rules, &mut change);
        }
        change
    }

    /// Sends the change; if the kernel refuses it, the full change, which a change from nothing is already.
    fn apply(&mut self, change: Change, from_nothing: bool) -> Result<(usize, bool), Error> {
        if let Some(mut iptables) = self.iptables.take() {
            let replaced = iptables.replace(&iptables::render(&self.book, self.portals()));
            self.iptables = Some(iptables);
            self.applied = replaced.is_ok();
            return replaced.map(|bytes| (bytes, true));
        }
        if self.applied {
            let batch = self.batch(&change);
            let bytes = batch.len();
            match self.socket.apply(batch) {
                Ok(()) => return Ok((bytes, false)),
                Err(error) => warn!("replacing the table, because a change of it was refused: {error}"),
            }
        }
        self.applied = false;
        let mut batch = Batch::new();
        skeleton(&mut batch, &self.book);
        let full = if from_nothing { change } else { self.claims.full() };
        self.put(&mut batch, &full);
        drop(full);
        let bytes = batch.len();
        self.socket.apply(batch)?;
        self.applied = true;
        Ok((bytes, true))
    }

    /// Returns every port of every Service, with its endpoints.
    fn portals(&self) -> impl Iterator<Item = Portal<'_>> {
        self.services.iter().flat_map(move |(key, service)| {
            service.ports.iter().map(move |port| Portal {
                key,
                service,
                port,
                served: served(port, self.slices_of(key), &self.topology),
            })
        })
    }

    /// Updates the programs at sockets. Nothing depends on them: the rules serve everything that the programs do not.
    fn sync_sockets(&mut self, dirty: &BTreeSet<ServiceKey>) {
        let Some(mut sockets) = self.sockets.take() else { return };
        for key in dirty {
            if let Err(error) = sockets.replace(key, self.at_cluster_address(key, sockets::wanted)) {
                warn!(namespace = key.namespace, name = key.name, "a Service is left to the rules: {error}");
            }
        }
        self.sockets = Some(sockets);
    }

    /// Updates IPVS with the addresses that the rules leave to it; a failure is repeated with the next sync.
    fn sync_ipvs(&mut self, dirty: &BTreeSet<ServiceKey>) -> Result<(), Error> {
        let Some(mut ipvs) = self.ipvs.take() else { return Ok(()) };
        let mut synced = Ok(());
        for key in dirty {
            if let Err(error) = ipvs.replace(key, &self.at_cluster_address(key, ipvs::wanted)) {
                self.dirty.insert(key.clone());
                synced = Err(error);
            }
        }
        let finished = if synced.is_ok() { ipvs.finish() } else { Ok(()) };
        self.ipvs = Some(ipvs);
        synced.and(finished)
    }

    /// Returns the wanted state of each port's cluster address that has endpoints.
    fn at_cluster_address<T>(
        &self,
        key: &ServiceKey,
        wanted: fn(&Service, &ServicePort, Vec<Target>) -> Option<T>,
    ) -> Vec<T> {
        let Some(service) = self.services.get(key) else { return Vec::new() };
        let wanted = |port| {
            let Served { cluster, local, .. } = served(port, self.slices_of(key), &self.topology);
            wanted(service, port, if service.internal_local { local } else { cluster })
        };
        service.ports.iter().filter_map(wanted).collect()
    }

    fn batch(&self, change: &Change) -> Batch {
        let mut batch = Batch::new();
        if !change.is_empty() {
            self.put(&mut batch, change);
        }
        batch
    }

    fn put(&self, batch: &mut Batch, change: &Change) {
        let table = self.book.table();
        for shape in &change.add_shapes {
            batch.add_chain(&table, &Chain::regular(&shape.name()));
        }
        for shape in &change.add_shapes {
            for rule in shape.rules(&self.book) {
                batch.add_rule(&table, &shape.name(), &rule);
            }
        }
        let leads = |shapes: &BTreeSet<Shape>| shapes.iter().filter_map(Shape::element).collect::<Vec<_>>();
        batch.add_elements(&table, &sets::shapes(), &leads(&change.add_shapes));
        for name in Name::ALL {
            batch.delete_elements(&table, &name.declaration(self.book.ip), of(&change.delete, name));
        }
        for name in Name::ALL {
            batch.add_elements(&table, &name.declaration(self.book.ip), of(&change.add, name));
        }
        batch.delete_elements(&table, &sets::shapes(), &leads(&change.delete_shapes));
        for shape in &change.delete_shapes {
            batch.flush_chain(&table, &shape.name());
        }
        for shape in &change.delete_shapes {
            batch.delete_chain(&table, &shape.name());
        }
    }
}

/// Returns the elements of one set.
fn of(elements: &BTreeSet<(Name, Arc<Element>)>, name: Name) -> impl Iterator<Item = &Element> {
    elements.iter().filter(move |(of, _)| *of == name).map(|(_, element)| &**element)
}
