//! Network Load Balancers: one for each Service, with its listeners, target groups and rules.
//!
//! Ensuring goes from the parts that nothing refers to, the target groups, to the load balancer and its listeners;
//! deleting goes the other way, and ends with all that has the load balancer's name and the cluster's tag. So the
//! process may end after any call: what is there is found again by name, and nothing is left behind.

use std::collections::BTreeSet;
use std::sync::Arc;

use corten_aws::call::{Call, MARKER};
use corten_outbound::xml::Element;
use tokio::time::Instant;

use super::super::batch::Fetched;
use super::compared::{Compared, Filled};
use super::instances::instance_ids;
use super::options::{Options, Pair};
use super::recent::Since;
use super::rules::rules;
use super::subnets::Subnet;
use super::tags::{Listed, pairs};
use super::target_groups::{Made, targets};
use super::wanted::{Group, Listener, Wanted, target_type, wanted};
use super::{ALL, Aws, MOST_LISTED, OWNED};
use crate::provider::{Answer, Balancer, BalancerStatus, Balancers, Error, Ingress};

/// The most targets of one call.
pub const MOST_TARGETS: usize = 200;
/// The tag with the Service's namespace and name.
const SERVICE_TAG: &str = "kubernetes.io/service-name";

/// The attribute of load balancers that send packets to the nodes of all zones.
const CROSS_ZONE: &str = "load_balancing.cross_zone.enabled";

/// A load balancer of the cluster.
struct Present {
    balancer: Element,
    tags: Vec<Pair>,
}

/// A load balancer and its parts, before they are changed.
struct Standing {
    balancer: Element,
    attributes: Vec<Pair>,
    tags: Vec<Pair>,
    listeners: Vec<Element>,
}

impl Standing {
    /// Returns a load balancer that was just made: it has the tags of the call and AWS's defaults.
    fn new(balancer: Element, tags: &[Pair]) -> Standing {
        let cross_zone = Pair { key: CROSS_ZONE.to_owned(), value: "false".to_owned() };
        Standing { balancer, attributes: vec![cross_zone], tags: tags.to_vec(), listeners: Vec::new() }
    }
}

impl Aws {
    /// Returns the load balancer of a name that is the cluster's; the error says that it is another owner's.
    async fn own_balancer(&self, name: &str, since: Since) -> Result<Option<Present>, Error> {
        let all = self.balancers_since(since.lists).await?;
        let Some(balancer) = named(&all, name) else { return Ok(None) };
        for since in [since.tags, Instant::now()] {
            let tags = self.tags_of(balancer.get("LoadBalancerArn"), &Listed::balancers(&all), since).await?;
            if self.is_ours(&tags) {
                return Ok(Some(Present { balancer: balancer.clone(), tags }));
            }
        }
        let tag = self.cluster_tag();
        Err(Error::Invalid(format!("the load balancer {name} is not this cluster's: it has no tag {tag}={OWNED}")))
    }

    /// Returns all load balancers: a list of names is refused if one has no load balancer.
    async fn balancers_since(&self, since: Instant) -> Result<Arc<Vec<Element>>, Error> {
        let all = self.shared.balancers.get_since(ALL, since, |_| Box::pin(self.all_balancers())).await?;
        Ok(all.unwrap_or_default())
    }

    async fn all_balancers(&self) -> Fetched<Arc<Vec<Element>>> {
        let call = Call::new("DescribeLoadBalancers").with("PageSize", MOST_LISTED);
        let found = self.elb.pages(&call, "LoadBalancers/member", MARKER).await?;
        Ok([(ALL.to_owned(), Arc::new(found))].into())
    }

    async fn ensure(&self, balancer: &Balancer) -> Result<BalancerStatus, Error> {
        if let Some(compared) = self.compared.take(balancer) {
            match self.change_nodes(balancer, compared).await {
                Ok(Some(changed)) => return Ok(self.remembered(changed)),
                Err(throttled @ Error::Throttled { .. }) => return Err(throttled),
                // The comparison finds out what is wrong.
                Ok(None) | Err(_) => {}
            }
        }
        let compared = self.compare(balancer, self.recent.since(&balancer.name)).await;
        self.recent.note(&balancer.name);
        compared.map(|compared| self.remembered(compared))
    }

    /// Remembers a load balancer that is as it is wanted.
    fn remembered(&self, compared: Compared) -> BalancerStatus {
        let status = compared.status.clone();
        self.compared.remember(compared);
        status
    }

    /// Gives a load balancer that differs in its nodes alone those nodes; `None` if their security groups lack its rules.
    async fn change_nodes(&self, balancer: &Balancer, mut compared: Compared) -> Result<Option<Compared>, Error> {
        let options = Options::parse(&balancer.annotations)?;
        if !self.has_rules(&balancer.nodes, &compared.security_groups, Since::held().lists).await? {
            return Ok(None);
        }
        let targets = targets(&balancer.nodes, target_type(&options))?;
        for group in &compared.groups {
            self.change_targets(group, &targets, &compared.targets).await?;
        }
        compared.targets = Arc::new(targets);
        Ok(Some(compared))
    }

    /// Makes a load balancer, or changes it to the wanted one, by answers that are recent enough.
    async fn compare(&self, balancer: &Balancer, since: Since) -> Result<Compared, Error> {
        let mut compared = Compared::new(balancer, Instant::now());
        let options = Options::parse(&balancer.annotations)?;
        let present = self.own_balancer(&balancer.name, since).await?;
        let instances = self.described(&instance_ids(&balancer.nodes)?, since.lists).await?;
        let vpc = self.vpc(&instances)?;
        let wanted = wanted(balancer, &options, &self.cluster, &vpc)?;
        let subnets = self.subnets(&vpc, &options, since.lists).await?;
        let tags = self.tags(balancer, &options);
        let groups = self.own_groups(&balancer.name, since).await?;
        compared.targets = Arc::new(targets(&balancer.nodes, target_type(&options))?);
        let common = Made { vpc: &vpc, tags: &tags, targets: &compared.targets };
        let mut arns = Vec::new();
        for group in &wanted.groups {
            arns.push(self.ensure_group(group, &groups, &common).await?);
        }
        let standing = self.ensure_one(present, balancer, &options, &subnets, &tags).await?;
        self.ensure_attributes(&standing, &options, &tags).await?;
        let rules = rules(&wanted, &source_ranges(balancer, &options), &subnets);
        compared.security_groups = self.ensure_rules(&balancer.name, &rules, &instances, since.lists).await?;
        self.ensure_listeners(&standing, &wanted, &arns, &tags).await?;
        self.delete_groups(groups.iter().filter(|group| !arns.iter().any(|arn| arn == group.get("TargetGroupArn"))))
            .await?;
        let name = standing.balancer.get("DNSName").to_owned();
        compared.status = BalancerStatus { ingress: vec![Ingress::Hostname(name)], warnings: options.warnings };
        let filled = |(arn, group): (String, &Group)| Filled { arn, node_port: group.node_port };
        compared.groups = arns.into_iter().zip(&wanted.groups).map(filled).collect();
        Ok(compared)
    }

    /// Returns the VPC: that of the configuration, or that of the nodes.
    fn vpc(&self, instances: &[Element]) -> Result<String, Error> {
        let known = Some(self.settings.vpc.clone()).filter(|vpc| !vpc.is_empty());
        let known = known.or_else(|| instances.first().map(|one| one.get("vpcId").to_owned()));
        let missing = "no node has an instance yet, and the cloud configuration names no VPC";
        known.filter(|vpc| !vpc.is_empty()).ok_or_else(|| Error::Invalid(missing.to_owned()))
    }

    /// Returns the tags of all objects of a load balancer.
    fn tags(&self, balancer: &Balancer, options: &Options) -> Vec<Pair> {
        let service = format!("{}/{}", balancer.service.namespace, balancer.service.name);
        let own = [
            Pair { key: self.cluster_tag(), value: OWNED.to_owned() },
            Pair { key: SERVICE_TAG.to_owned(), value: service },
        ];
        own.into_iter().chain(options.tags.iter().cloned()).collect()
    }

    /// Makes the load balancer, or gives it the wanted subnets. One with another scheme is made anew.
    async fn ensure_one(
        &self,
        present: Option<Present>,
        balancer: &Balancer,
        options: &Options,
        subnets: &[Subnet],
        tags: &[Pair],
    ) -> Result<Standing, Error> {
        let scheme = if options.is_internal { "internal" } else { "internet-facing" };
        if let Some(present) = present {
            let arn = present.balancer.get("LoadBalancerArn");
            if present.balancer.get("Scheme") == scheme {
                let zones: BTreeSet<&str> =
                    present.balancer.all("AvailabilityZones/member").map(|zone| zone.get("SubnetId")).collect();
                let is_same = zones == subnets.iter().map(|subnet| subnet.id.as_str()).collect();
                if !is_same && options.elastic_addresses.is_empty() {
                    let ids = subnets.iter().map(|subnet| subnet.id.as_str());
                    let call = Call::new("SetSubnets").with("LoadBalancerArn", arn).list("Subnets.member", ids);
                    self.elb.call(&call).await?;
                }
                return self.standing(present).await;
            }
            self.elb.call(&Call::new("DeleteLoadBalancer").with("LoadBalancerArn", arn)).await?;
        }
        let call =
            Call::new("CreateLoadBalancer").with("Name", &balancer.name).with("Type", "network").with("Scheme", scheme);
        let mut call = with_tags(call, tags);
        for (index, subnet) in subnets.iter().enumerate() {
            let number = index + 1;
            match options.elastic_addresses.get(index) {
                Some(allocation) => {
                    let mapping = format!("SubnetMappings.member.{number}");
                    call = call.with(format!("{mapping}.SubnetId"), &subnet.id);
                    call = call.with(format!("{mapping}.AllocationId"), allocation);
                }
                None => call = call.with(format!("Subnets.member.{number}"), &subnet.id),
            }
        }
        let made = self.elb.call(&call).await?;
        let made = made.all("LoadBalancers/member").next().cloned();
        let made = made.ok_or_else(|| Error::Failed("AWS gave no load balancer".to_owned()))?;
        Ok(Standing::new(made, tags))
    }

    /// Returns the parts of a load balancer that exists.
    async fn standing(&self, present: Present) -> Result<Standing, Error> {
        let Present { balancer, tags } = present;
        let arn = balancer.get("LoadBalancerArn");
        let described = Call::new("DescribeLoadBalancerAttributes").with("LoadBalancerArn", arn);
        let attributes = attributes(&self.elb.call(&described).await?);
        let call = Call::new("DescribeListeners").with("LoadBalancerArn", arn);
        let listeners = self.elb.pages(&call, "Listeners/member", MARKER).await?;
        Ok(Standing { balancer, attributes, tags, listeners })
    }

    /// Sets the attributes and the additional tags of a load balancer where they differ.
    async fn ensure_attributes(&self, standing: &Standing, options: &Options, tags: &[Pair]) -> Result<(), Error> {
        let arn = standing.balancer.get("LoadBalancerArn");
        let cross_zone = Pair { key: CROSS_ZONE.to_owned(), value: options.is_cross_zone.to_string() };
        let given = options.attributes.iter().filter(|pair| pair.key != CROSS_ZONE).cloned();
        let attributes: Vec<Pair> = given.chain([cross_zone]).collect();
        let change = Call::new("ModifyLoadBalancerAttributes").with("LoadBalancerArn", arn);
        if let Some(change) = changed_attributes(change, &standing.attributes, &attributes) {
            self.elb.call(&change).await?;
        }
        let missing: Vec<Pair> = tags.iter().filter(|tag| !standing.tags.contains(tag)).cloned().collect();
        if !missing.is_empty() {
            let call = Call::new("AddTags").list("ResourceArns.member", [arn]);
            self.elb.call(&with_tags(call, &missing)).await?;
        }
        Ok(())
    }

    /// Makes, changes and deletes the listeners of a load balancer.
    async fn ensure_listeners(
        &self,
        standing: &Standing,
        wanted: &Wanted,
        groups: &[String],
        tags: &[Pair],
    ) -> Result<(), Error> {
        let balancer = standing.balancer.get("LoadBalancerArn");
        let present = &standing.listeners;
        let is_wanted =
            |one: &&Element| wanted.listeners.iter().any(|listener| one.get("Port") == listener.port.to_string());
        for surplus in present.iter().filter(|one| !is_wanted(one)) {
            let arn = surplus.get("ListenerArn");
            self.elb.call(&Call::new("DeleteListener").with("ListenerArn", arn)).await?;
        }
        for (listener, group) in wanted.listeners.iter().zip(groups) {
            let found = present.iter().find(|one| one.get("Port") == listener.port.to_string());
            let call = match found {
                Some(found) if is_same(found, listener, group) => continue,
                Some(found) => Call::new("ModifyListener").with("ListenerArn", found.get("ListenerArn")),
                None => with_tags(Call::new("CreateListener").with("LoadBalancerArn", balancer), tags),
            };
            self.elb.call(&with_listener(call, listener, group)).await?;
        }
        Ok(())
    }

    /// Deletes everything of a load balancer, by lists that are fetched anew: an older one could lack a part.
    async fn delete_all(&self, name: &str) -> Result<(), Error> {
        self.compared.forget(name);
        self.recent.note(name);
        let since = Since::now();
        let now = since.lists;
        self.delete_rules(name, now).await?;
        let all = self.balancers_since(now).await?;
        if let Some(found) = named(&all, name) {
            let arn = found.get("LoadBalancerArn");
            match self.owned(&[arn], &Listed::balancers(&all), now).await?.contains(arn) {
                true => drop(self.elb.call(&Call::new("DeleteLoadBalancer").with("LoadBalancerArn", arn)).await?),
                false => tracing::warn!("the load balancer {name} has another owner and stays"),
            }
        }
        let groups = self.own_groups(name, since).await?;
        self.delete_groups(groups.iter()).await
    }
}

/// Returns the load balancer of a name.
fn named<'a>(all: &'a [Element], name: &str) -> Option<&'a Element> {
    all.iter().find(|one| one.get("LoadBalancerName") == name)
}

/// Returns the source ranges: those of the spec, else those of the annotation.
fn source_ranges(balancer: &Balancer, options: &Options) -> Vec<String> {
    if balancer.source_ranges.is_empty() { options.source_ranges.clone() } else { balancer.source_ranges.clone() }
}

/// Adds tags to a call.
pub fn with_tags(mut call: Call, tags: &[Pair]) -> Call {
    for (index, tag) in tags.iter().enumerate() {
        let name = format!("Tags.member.{}", index + 1);
        call = call.with(format!("{name}.Key"), &tag.key).with(format!("{name}.Value"), &tag.value);
    }
    call
}

/// Returns the attributes of an answer.
pub fn attributes(described: &Element) -> Vec<Pair> {
    pairs(described, "Attributes/member")
}

/// Returns the call with the attributes that differ from the present ones; none if all are the same.
pub fn changed_attributes(mut call: Call, present: &[Pair], wanted: &[Pair]) -> Option<Call> {
    let changed: Vec<&Pair> = wanted.iter().filter(|pair| !present.contains(pair)).collect();
    for (index, pair) in changed.iter().enumerate() {
        let name = format!("Attributes.member.{}", index + 1);
        call = call.with(format!("{name}.Key"), &pair.key).with(format!("{name}.Value"), &pair.value);
    }
    (!changed.is_empty()).then_some(call)
}

/// Reports whether a listener is as it is wanted. A policy that the Service does not name may be any.
fn is_same(found: &Element, wanted: &Listener, group: &str) -> bool {
    let certificates: Vec<&str> =
        found.all("Certificates/member").map(|one| one.get("CertificateArn")).take(1).collect();
    let first: Vec<&str> = wanted.certificates.iter().map(String::as_str).take(1).collect();
    let policy = wanted.tls_policy.as_deref().is_none_or(|policy| found.get("SslPolicy") == policy);
    let alpn = wanted.alpn_policy.as_deref().is_none_or(|policy| found.get("AlpnPolicy/member") == policy);
    found.get("Protocol") == wanted.protocol
        && found.get("DefaultActions/member/TargetGroupArn") == group
        && certificates == first
        && policy
        && alpn
}

fn with_listener(call: Call, listener: &Listener, group: &str) -> Call {
    let mut call = call
        .with("Protocol", listener.protocol)
        .with("Port", listener.port.to_string())
        .with("DefaultActions.member.1.Type", "forward")
        .with("DefaultActions.member.1.TargetGroupArn", group);
    if let Some(certificate) = listener.certificates.first() {
        call = call.with("Certificates.member.1.CertificateArn", certificate);
    }
    if let Some(policy) = &listener.tls_policy {
        call = call.with("SslPolicy", policy);
    }
    if let Some(policy) = &listener.alpn_policy {
        call = call.with("AlpnPolicy.member.1", policy);
    }
    call
}

impl Balancers for Aws {
    fn balancer<'a>(&'a self, name: &'a str) -> Answer<'a, Option<BalancerStatus>> {
        Box::pin(async move {
            let found = self.own_balancer(name, Since::now()).await?;
            let status = |found: Present| BalancerStatus {
                ingress: vec![Ingress::Hostname(found.balancer.get("DNSName").to_owned())],
                warnings: Vec::new(),
            };
            Ok(found.map(status))
        })
    }

    fn ensure_balancer<'a>(&'a self, wanted: &'a Balancer) -> Answer<'a, BalancerStatus> {
        Box::pin(self.ensure(wanted))
    }

    fn delete_balancer<'a>(&'a self, name: &'a str) -> Answer<'a, ()> {
        Box::pin(self.delete_all(name))
    }
}
