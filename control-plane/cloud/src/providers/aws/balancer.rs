//! Network Load Balancers: one for each Service, with its listeners, target groups and rules.
//!
//! Ensuring goes from the parts that nothing refers to, the target groups, to the load balancer and its listeners;
//! deleting goes the other way, and ends with all that has the load balancer's name and the cluster's tag. So the
//! process may end after any call: what is there is found again by name, and nothing is left behind.

use std::collections::BTreeSet;

use corten_outbound::xml::Element;

use super::call::{Call, MARKER};
use super::options::{Options, Pair};
use super::rules::rules;
use super::subnets::Subnet;
use super::wanted::{Listener, Wanted, wanted};
use super::{Aws, OWNED, instances};
use crate::provider::{Answer, Balancer, BalancerStatus, Balancers, Error, Ingress};

/// The most targets of one call.
pub const MOST_TARGETS: usize = 100;
/// The most objects whose tags one call returns.
const MOST_TAGGED: usize = 20;
/// The tag with the Service's namespace and name.
const SERVICE_TAG: &str = "kubernetes.io/service-name";

impl Aws {
    /// Returns the load balancer of a name that is the cluster's; the error says that it is another owner's.
    async fn own_balancer(&self, name: &str) -> Result<Option<Element>, Error> {
        let Some(found) = self.named_balancer(name).await? else { return Ok(None) };
        let arn = found.get("LoadBalancerArn");
        if self.owned(&[arn]).await?.contains(arn) {
            return Ok(Some(found));
        }
        let tag = self.cluster_tag();
        Err(Error::Invalid(format!("the load balancer {name} is not this cluster's: it has no tag {tag}={OWNED}")))
    }

    async fn named_balancer(&self, name: &str) -> Result<Option<Element>, Error> {
        let call = Call::new("DescribeLoadBalancers").list("Names.member", [name]);
        match self.elb.call(&call).await {
            Ok(found) => Ok(found.all("LoadBalancers/member").next().cloned()),
            Err(refusal) if refusal.code == "LoadBalancerNotFound" => Ok(None),
            Err(refusal) => Err(refusal.into()),
        }
    }

    /// Returns those of the ARNs whose object has the cluster's tag.
    pub(super) async fn owned(&self, arns: &[&str]) -> Result<BTreeSet<String>, Error> {
        let tag = self.cluster_tag();
        let mut owned = BTreeSet::new();
        for chunk in arns.chunks(MOST_TAGGED) {
            let call = Call::new("DescribeTags").list("ResourceArns.member", chunk.iter().copied());
            for described in self.elb.call(&call).await?.all("TagDescriptions/member") {
                let is_ours = |one: &Element| one.get("Key") == tag && one.get("Value") == OWNED;
                if described.all("Tags/member").any(is_ours) {
                    owned.insert(described.get("ResourceArn").to_owned());
                }
            }
        }
        Ok(owned)
    }

    async fn ensure(&self, balancer: &Balancer) -> Result<BalancerStatus, Error> {
        let options = Options::parse(&balancer.annotations)?;
        let present = self.own_balancer(&balancer.name).await?;
        let instances = self.described(&instance_ids(balancer)?).await?;
        let vpc = self.vpc(&instances)?;
        let wanted = wanted(balancer, &options, &self.cluster, &vpc)?;
        let subnets = self.subnets(&vpc, &options).await?;
        let tags = self.tags(balancer, &options);
        let groups = self.own_groups(&balancer.name).await?;
        let mut arns = Vec::new();
        for group in &wanted.groups {
            let arn = self.ensure_group(group, &groups, &vpc, &tags).await?;
            self.ensure_targets(&arn, group.target_type, group.node_port, &balancer.nodes).await?;
            arns.push(arn);
        }
        let made = self.ensure_one(present, balancer, &options, &subnets, &tags).await?;
        self.ensure_attributes(&made, &options, &tags).await?;
        self.ensure_rules(&balancer.name, &rules(&wanted, &source_ranges(balancer, &options), &subnets), &instances)
            .await?;
        self.ensure_listeners(&made, &wanted, &arns, &tags).await?;
        self.delete_groups(groups.iter().filter(|group| !arns.iter().any(|arn| arn == group.get("TargetGroupArn"))))
            .await?;
        let name = made.get("DNSName").to_owned();
        Ok(BalancerStatus { ingress: vec![Ingress::Hostname(name)], warnings: options.warnings })
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
        present: Option<Element>,
        balancer: &Balancer,
        options: &Options,
        subnets: &[Subnet],
        tags: &[Pair],
    ) -> Result<Element, Error> {
        let scheme = if options.is_internal { "internal" } else { "internet-facing" };
        if let Some(present) = present {
            let arn = present.get("LoadBalancerArn");
            if present.get("Scheme") == scheme {
                let zones: BTreeSet<&str> =
                    present.all("AvailabilityZones/member").map(|zone| zone.get("SubnetId")).collect();
                let is_same = zones == subnets.iter().map(|subnet| subnet.id.as_str()).collect();
                if !is_same && options.elastic_addresses.is_empty() {
                    let ids = subnets.iter().map(|subnet| subnet.id.as_str());
                    let call = Call::new("SetSubnets").with("LoadBalancerArn", arn).list("Subnets.member", ids);
                    self.elb.call(&call).await?;
                }
                return Ok(present);
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
        made.ok_or_else(|| Error::Failed("AWS gave no load balancer".to_owned()))
    }

    /// Sets the attributes and the additional tags of a load balancer where they differ.
    async fn ensure_attributes(&self, made: &Element, options: &Options, tags: &[Pair]) -> Result<(), Error> {
        let arn = made.get("LoadBalancerArn");
        let cross_zone =
            Pair { key: "load_balancing.cross_zone.enabled".to_owned(), value: options.is_cross_zone.to_string() };
        let given = options.attributes.iter().filter(|pair| pair.key != cross_zone.key).cloned();
        let attributes: Vec<Pair> = given.chain([cross_zone.clone()]).collect();
        let described = Call::new("DescribeLoadBalancerAttributes").with("LoadBalancerArn", arn);
        let described = self.elb.call(&described).await?;
        let change = Call::new("ModifyLoadBalancerAttributes").with("LoadBalancerArn", arn);
        if let Some(change) = changed_attributes(change, &described, &attributes) {
            self.elb.call(&change).await?;
        }
        let described = self.elb.call(&Call::new("DescribeTags").list("ResourceArns.member", [arn])).await?;
        let has = |tag: &Pair| {
            let mut present = described.all("TagDescriptions/member").flat_map(|one| one.all("Tags/member"));
            present.any(|one| one.get("Key") == tag.key && one.get("Value") == tag.value)
        };
        let missing: Vec<Pair> = tags.iter().filter(|tag| !has(tag)).cloned().collect();
        if !missing.is_empty() {
            let call = Call::new("AddTags").list("ResourceArns.member", [arn]);
            self.elb.call(&with_tags(call, &missing)).await?;
        }
        Ok(())
    }

    /// Makes, changes and deletes the listeners of a load balancer.
    async fn ensure_listeners(
        &self,
        made: &Element,
        wanted: &Wanted,
        groups: &[String],
        tags: &[Pair],
    ) -> Result<(), Error> {
        let balancer = made.get("LoadBalancerArn");
        let call = Call::new("DescribeListeners").with("LoadBalancerArn", balancer);
        let present = self.elb.pages(&call, "Listeners/member", MARKER).await?;
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

    async fn update(&self, balancer: &Balancer) -> Result<(), Error> {
        let Some(_) = self.own_balancer(&balancer.name).await? else { return Ok(()) };
        self.ensure(balancer).await.map(drop)
    }

    async fn delete_all(&self, name: &str) -> Result<(), Error> {
        self.delete_rules(name).await?;
        if let Some(found) = self.named_balancer(name).await? {
            let arn = found.get("LoadBalancerArn");
            match self.owned(&[arn]).await?.contains(arn) {
                true => drop(self.elb.call(&Call::new("DeleteLoadBalancer").with("LoadBalancerArn", arn)).await?),
                false => tracing::warn!("the load balancer {name} has another owner and stays"),
            }
        }
        let groups = self.own_groups(name).await?;
        self.delete_groups(groups.iter()).await
    }
}

fn instance_ids(balancer: &Balancer) -> Result<Vec<String>, Error> {
    balancer.nodes.iter().map(|node| instances::instance_id(&node.provider_id).map(str::to_owned)).collect()
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

/// Returns the call with the attributes that differ from the described ones; none if all are the same.
pub fn changed_attributes(mut call: Call, described: &Element, wanted: &[Pair]) -> Option<Call> {
    let has = |pair: &&Pair| {
        let mut present = described.all("Attributes/member");
        present.any(|one| one.get("Key") == pair.key && one.get("Value") == pair.value)
    };
    let changed: Vec<&Pair> = wanted.iter().filter(|pair| !has(pair)).collect();
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
            let found = self.own_balancer(name).await?;
            let status = |found: Element| BalancerStatus {
                ingress: vec![Ingress::Hostname(found.get("DNSName").to_owned())],
                warnings: Vec::new(),
            };
            Ok(found.map(status))
        })
    }

    fn ensure_balancer<'a>(&'a self, wanted: &'a Balancer) -> Answer<'a, BalancerStatus> {
        Box::pin(self.ensure(wanted))
    }

    fn update_balancer<'a>(&'a self, wanted: &'a Balancer) -> Answer<'a, ()> {
        Box::pin(self.update(wanted))
    }

    fn delete_balancer<'a>(&'a self, name: &'a str) -> Answer<'a, ()> {
        Box::pin(self.delete_all(name))
    }
}
