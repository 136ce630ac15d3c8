//! The rules by which packets of a load balancer enter the nodes.
//!
//! They are rules of the security groups of nodes with the cluster's tag. Rules have no tags of their own: those of a
//! load balancer are found by their description, and no others are touched.

use std::collections::BTreeSet;
use std::sync::Arc;

use corten_aws::call::{Call, NEXT_TOKEN};
use corten_outbound::xml::Element;
use tokio::time::Instant;

use super::super::batch::Fetched;
use super::instances::instance_ids;
use super::subnets::Subnet;
use super::wanted::Wanted;
use super::{ALL, Aws};
use crate::provider::{BalancerNode, Error};

/// The range of all clients.
const EVERYWHERE: &str = "0.0.0.0/0";

/// A rule of a security group.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rule {
    protocol: &'static str,
    port: u16,
    cidr: String,
}

/// Returns the description of a load balancer's rules, as upstream writes it.
fn description(balancer: &str) -> String {
    format!("kubernetes.io/rule/nlb/client={balancer}")
}

/// Returns the rules of a load balancer: clients reach the node ports, its own addresses the health checks too.
pub fn rules(wanted: &Wanted, source_ranges: &[String], subnets: &[Subnet]) -> BTreeSet<Rule> {
    let mut rules = BTreeSet::new();
    let everywhere = [EVERYWHERE.to_owned()];
    let clients = if source_ranges.is_empty() { &everywhere[..] } else { source_ranges };
    for group in &wanted.groups {
        let protocols: &[&'static str] = match group.protocol {
            "UDP" => &["udp"],
            "TCP_UDP" => &["tcp", "udp"],
            _ => &["tcp"],
        };
        for protocol in protocols {
            let own = subnets.iter().map(|subnet| &subnet.cidr);
            for cidr in clients.iter().chain(own) {
                rules.insert(Rule { protocol, port: group.node_port, cidr: cidr.clone() });
            }
        }
        let health = group.health.parameters.iter().find(|pair| pair.key == "HealthCheckPort");
        if let Some(port) = health.and_then(|pair| pair.value.parse().ok()) {
            for subnet in subnets {
                rules.insert(Rule { protocol: "tcp", port, cidr: subnet.cidr.clone() });
            }
        }
    }
    rules
}

impl Aws {
    /// Gives the security groups of nodes the rules of a load balancer, and takes its other rules. Returns the security
    /// groups that have rules.
    pub(super) async fn ensure_rules(
        &self,
        balancer: &str,
        wanted: &BTreeSet<Rule>,
        instances: &[Element],
        since: Instant,
    ) -> Result<BTreeSet<String>, Error> {
        if self.settings.leaves_security_groups {
            return Ok(BTreeSet::new());
        }
        let groups = self.tagged_groups(since).await?;
        let used = self.used_groups(instances, &groups)?;
        for group in groups.iter() {
            let id = group.get("groupId");
            let present = present(group, balancer);
            let wanted = if used.contains(id) { wanted.clone() } else { BTreeSet::new() };
            self.authorize(id, balancer, wanted.difference(&present)).await?;
            self.revoke(id, balancer, present.difference(&wanted)).await?;
        }
        Ok(used)
    }

    /// Reports whether the security groups of nodes are those that have the rules of a load balancer.
    pub(super) async fn has_rules(
        &self,
        nodes: &[BalancerNode],
        security_groups: &BTreeSet<String>,
        since: Instant,
    ) -> Result<bool, Error> {
        if self.settings.leaves_security_groups {
            return Ok(true);
        }
        let instances = self.described(&instance_ids(nodes)?, since).await?;
        let groups = self.tagged_groups(since).await?;
        Ok(self.used_groups(&instances, &groups)? == *security_groups)
    }

    /// Returns the tagged security groups of instances, one of each.
    fn used_groups(&self, instances: &[Element], groups: &[Element]) -> Result<BTreeSet<String>, Error> {
        let mut used = BTreeSet::new();
        for instance in instances {
            let mut of_instance = instance.all("groupSet/item").map(|group| group.get("groupId"));
            let tagged = of_instance.find(|id| groups.iter().any(|group| group.get("groupId") == *id));
            let tagged = tagged.ok_or_else(|| {
                let id = instance.get("instanceId");
                Error::Invalid(format!("no security group of instance {id} has the tag {}", self.cluster_tag()))
            })?;
            used.insert(tagged.to_owned());
        }
        Ok(used)
    }

    /// Takes all rules of a load balancer.
    pub(super) async fn delete_rules(&self, balancer: &str, since: Instant) -> Result<(), Error> {
        if self.settings.leaves_security_groups {
            return Ok(());
        }
        for group in self.tagged_groups(since).await?.iter() {
            let present = present(group, balancer);
            self.revoke(group.get("groupId"), balancer, present.iter()).await?;
        }
        Ok(())
    }

    /// Returns the security groups with the cluster's tag.
    async fn tagged_groups(&self, since: Instant) -> Result<Arc<Vec<Element>>, Error> {
        let found = self.shared.security_groups.get_since(ALL, since, |_| Box::pin(self.fetch_groups())).await?;
        Ok(found.unwrap_or_default())
    }

    async fn fetch_groups(&self) -> Fetched<Arc<Vec<Element>>> {
        let call = Call::new("DescribeSecurityGroups").filter("tag-key", [self.cluster_tag()]);
        let found = self.ec2.pages(&call, "securityGroupInfo/item", NEXT_TOKEN).await?;
        Ok([(ALL.to_owned(), Arc::new(found))].into())
    }

    async fn authorize<'a>(
        &self,
        group: &str,
        balancer: &str,
        rules: impl Iterator<Item = &'a Rule>,
    ) -> Result<(), Error> {
        let change = Change { action: "AuthorizeSecurityGroupIngress", is_done: "InvalidPermission.Duplicate" };
        self.change_rules(&change, group, balancer, &rules.collect::<Vec<_>>()).await
    }

    async fn revoke<'a>(
        &self,
        group: &str,
        balancer: &str,
        rules: impl Iterator<Item = &'a Rule>,
    ) -> Result<(), Error> {
        let change = Change { action: "RevokeSecurityGroupIngress", is_done: "InvalidPermission.NotFound" };
        self.change_rules(&change, group, balancer, &rules.collect::<Vec<_>>()).await
    }

    /// Changes rules in one call. If one of them is as it is wanted, because of another Service or an earlier call, AWS
    /// refuses all; then they are changed one by one.
    async fn change_rules(&self, change: &Change, group: &str, balancer: &str, rules: &[&Rule]) -> Result<(), Error> {
        if rules.is_empty() {
            return Ok(());
        }
        let all = with_rules(Call::new(change.action), group, balancer, rules);
        match self.ec2.call(&all).await {
            Ok(_) => return Ok(()),
            Err(refusal) if refusal.code != change.is_done => return Err(refusal.into()),
            Err(_) if rules.len() == 1 => return Ok(()),
            Err(_) => {}
        }
        for rule in rules {
            let call = with_rules(Call::new(change.action), group, balancer, &[rule]);
            match self.ec2.call(&call).await {
                Err(refusal) if refusal.code != change.is_done => return Err(refusal.into()),
                _ => {}
            }
        }
        Ok(())
    }
}

/// A change of rules, and the code with which AWS refuses one that is done.
struct Change {
    action: &'static str,
    is_done: &'static str,
}

/// Returns the rules of a group that have the description of a load balancer.
fn present(group: &Element, balancer: &str) -> BTreeSet<Rule> {
    let description = description(balancer);
    let mut rules = BTreeSet::new();
    for permission in group.all("ipPermissions/item") {
        let protocol = match permission.get("ipProtocol") {
            "tcp" => "tcp",
            "udp" => "udp",
            _ => continue,
        };
        let Ok(port) = permission.get("fromPort").parse() else { continue };
        let v4 = permission.all("ipRanges/item").map(|range| (range, "cidrIp"));
        let v6 = permission.all("ipv6Ranges/item").map(|range| (range, "cidrIpv6"));
        for (range, name) in v4.chain(v6).filter(|(range, _)| range.get("description") == description) {
            rules.insert(Rule { protocol, port, cidr: range.get(name).to_owned() });
        }
    }
    rules
}

fn with_rules(call: Call, group: &str, balancer: &str, rules: &[&Rule]) -> Call {
    let mut call = call.with("GroupId", group);
    for (index, rule) in rules.iter().enumerate() {
        let permission = format!("IpPermissions.{}", index + 1);
        let [ranges, cidr] = match rule.cidr.contains(':') {
            true => ["Ipv6Ranges.1", "CidrIpv6"],
            false => ["IpRanges.1", "CidrIp"],
        };
        call = call
            .with(format!("{permission}.IpProtocol"), rule.protocol)
            .with(format!("{permission}.FromPort"), rule.port.to_string())
            .with(format!("{permission}.ToPort"), rule.port.to_string())
            .with(format!("{permission}.{ranges}.{cidr}"), rule.cidr.clone())
            .with(format!("{permission}.{ranges}.Description"), description(balancer));
    }
    call
}
