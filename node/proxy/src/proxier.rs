//! The state of the proxy for one version of IP, and its application to the kernel.
//!
//! Changes of objects only mark Services as dirty; [`Proxier::sync`] computes them and sends one
//! batch. The first sync, and any after a refused batch, replaces the table as a whole, so leftovers
//! of an earlier run or of someone's `flush ruleset` do not matter.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use corten_nftables::{Batch, Chain, Element, IpVersion, Socket};
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
use crate::topology::Place;
use crate::{Config, Mode};

/// What a sync did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Synced {
    /// Services that were computed again.
    pub services: usize,
    /// Bytes sent to the kernel.
    pub bytes: usize,
    /// Whether the table was replaced as a whole.
    pub whole: bool,
}

/// The Services of the cluster as this node's kernel knows them. Belongs to the network namespace of
/// the thread that made it.
pub struct Proxier {
    book: Rulebook,
    place: Place,
    services: BTreeMap<ServiceKey, Service>,
    /// Which addresses beside the cluster's Services may have.
    exposure: Exposure,
    /// Few a Service, so a list of them is the smallest and fast.
    slices: BTreeMap<ServiceKey, Vec<(SliceKey, Slice)>>,
    /// Which Service a slice counts for, to find it when its label changes or it goes.
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
    /// Whether the kernel holds what `claims` say.
    applied: bool,
}

impl Proxier {
    pub fn new(config: Config, ip: IpVersion) -> Result<Proxier, Error> {
        let place = Place { node: config.node_name.clone(), zone: None };
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
            place,
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

    /// The version of IP that this one proxies.
    pub fn version(&self) -> IpVersion {
        self.book.ip
    }

    /// A Service as it is now; none if it is gone or has nothing to proxy.
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

    /// The addresses of a node as they are now; none if it is gone.
    pub fn set_node(&mut self, name: &str, addresses: Option<Vec<IpAddr>>) {
        if self.exposure.set_node(name, addresses) {
            self.expose_again();
        }
    }

    /// The ranges of a ServiceCIDR as they are now; none if it is gone.
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

    /// An EndpointSlice as it is now; none if it is gone or of no concern.
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

    /// The zone of this node; hints of endpoints depend on it.
    pub fn set_zone(&mut self, zone: Option<String>) {
        if self.place.zone != zone {
            self.place.zone = zone;
            self.dirty.extend(self.services.keys().cloned());
        }
    }

    /// Notices that someone else deleted the table, as a restarted firewall service does.
    pub fn check(&mut self) -> Result<(), Error> {
        let tables = self.socket.tables()?;
        self.fence.check(&tables);
        if self.iptables.is_some() {
            // Looking costs as much as saying it again.
            self.applied = false;
            return Ok(());
        }
        if self.applied && !tables.contains(&self.book.table()) {
            warn!(table = self.book.config.table, "the table of the Services was deleted by someone else");
            self.applied = false;
        }
        if let Some(ipvs) = &mut self.ipvs
            && !ipvs.check()?
        {
            warn!("somebody else changed what IPVS knows of the Services");
            self.dirty.extend(self.services.keys().cloned());
        }
        Ok(())
    }

    /// What the health check ports tell.
    pub(crate) fn health_checks(&self) -> Checks {
        let check = |key: &ServiceKey, port: u16| Check { port, local_endpoints: self.local_endpoints(key) };
        self.checked.iter().map(|(key, port)| (key.clone(), check(key, *port))).collect()
    }

    /// Ready endpoints on this node, each counted once.
    fn local_endpoints(&self, key: &ServiceKey) -> usize {
        let slices = self.slices_of(key);
        let endpoints = slices.flat_map(|slice| &slice.endpoints);
        let local = endpoints.filter(|endpoint| endpoint.ready && endpoint.is_local(&self.place));
        local.map(|endpoint| endpoint.address).collect::<BTreeSet<_>>().len()
    }

    /// Whether a sync has something to do.
    pub fn is_dirty(&self) -> bool {
        !self.applied || !self.dirty.is_empty() || self.fence.is_dirty()
    }

    /// Brings the kernel to what the objects say, in one batch.
    pub fn sync(&mut self) -> Result<Synced, Error> {
        self.fence.sync(&mut self.socket)?;
        let dirty = std::mem::take(&mut self.dirty);
        let from_nothing = self.claims.is_empty();
        let change = self.compute(&dirty);
        let mut udp = flows::changed(&change);
        self.tell_sockets(&dirty);
        let applied = self.apply(change, from_nothing);
        let told = self.tell_ipvs(&dirty);
        let (bytes, whole) = applied?;
        for key in &dirty {
            if let Some(claimed) = self.claims.claimed(key) {
                flows::complete(&mut udp, claimed);
            }
        }
        match flows::delete_stale(&udp) {
            Ok(0) => {}
            Ok(deleted) => debug!(deleted, "deleted UDP flows of endpoints that are gone"),
            Err(error) => warn!("cannot delete UDP flows of endpoints that are gone: {error}"),
        }
        told.map(|()| Synced { services: dirty.len(), bytes, whole })
    }

    fn compute(&mut self, dirty: &BTreeSet<ServiceKey>) -> Change {
        let mut change = Change::default();
        for key in dirty {
            let mut rules = self.services.get(key).map(|service| desired(service, self.slices_of(key), &self.place));
            if let (Some(rules), Some(service), true) = (&mut rules, self.services.get(key), self.ipvs.is_some()) {
                rules.elements.insert((Name::Held, Element::key(service.cluster_ip)));
            }
            self.claims.replace(key, rules, &mut change);
        }
        change
    }

    /// Sends the change; if the kernel refuses it, the whole, which a change from nothing is already.
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
        let whole = if from_nothing { change } else { self.claims.whole() };
        self.put(&mut batch, &whole);
        drop(whole);
        let bytes = batch.len();
        self.socket.apply(batch)?;
        self.applied = true;
        Ok((bytes, true))
    }

    /// Every port of every Service, with who serves it.
    fn portals(&self) -> impl Iterator<Item = Portal<'_>> {
        self.services.iter().flat_map(move |(key, service)| {
            service.ports.iter().map(move |port| Portal {
                key,
                service,
                port,
                served: served(port, self.slices_of(key), &self.place),
            })
        })
    }

    /// Nothing depends on it: the rules serve whatever the programs do not know.
    fn tell_sockets(&mut self, dirty: &BTreeSet<ServiceKey>) {
        let Some(mut sockets) = self.sockets.take() else { return };
        for key in dirty {
            if let Err(error) = sockets.replace(key, self.at_cluster_address(key, sockets::wanted)) {
                warn!(namespace = key.namespace, name = key.name, "a Service is left to the rules: {error}");
            }
        }
        self.sockets = Some(sockets);
    }

    /// Tells what the rules leave to it; what fails is repeated with the next sync.
    fn tell_ipvs(&mut self, dirty: &BTreeSet<ServiceKey>) -> Result<(), Error> {
        let Some(mut ipvs) = self.ipvs.take() else { return Ok(()) };
        let mut told = Ok(());
        for key in dirty {
            if let Err(error) = ipvs.replace(key, &self.at_cluster_address(key, ipvs::wanted)) {
                self.dirty.insert(key.clone());
                told = Err(error);
            }
        }
        let finished = if told.is_ok() { ipvs.finish() } else { Ok(()) };
        self.ipvs = Some(ipvs);
        told.and(finished)
    }

    /// What is wanted of each port's cluster address that somebody serves.
    fn at_cluster_address<T>(
        &self,
        key: &ServiceKey,
        wanted: fn(&Service, &ServicePort, Vec<Target>) -> Option<T>,
    ) -> Vec<T> {
        let Some(service) = self.services.get(key) else { return Vec::new() };
        let wanted = |port| {
            let Served { cluster, local, .. } = served(port, self.slices_of(key), &self.place);
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

/// The elements of one set.
fn of(elements: &BTreeSet<(Name, Arc<Element>)>, name: Name) -> impl Iterator<Item = &Element> {
    elements.iter().filter(move |(of, _)| *of == name).map(|(_, element)| &**element)
}
