//! The rules by which packets of a load balancer enter the nodes.
//!
//! They are rules of the security groups of nodes with the cluster's tag. Rules have no tags of their own: those of a
//! load balancer are found by their description, and no others are touched.

use std::collections::BTreeSet;

use corten_outbound::xml::Element;

use super::Aws;
use super::call::{Call, NEXT_TOKEN};
use super::subnets::Subnet;
use super::wanted::Wanted;
use crate::provider::Error;

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
    /// Gives the security groups of nodes the rules of a load balancer, and takes its other rules.
    pub(super) async fn ensure_rules(
        &self,
        balancer: &str,
        wanted: &BTreeSet<Rule>,
        instances: &[Element],
    ) -> Result<(), Error> {
        if self.settings.leaves_security_groups {
            return Ok(());
        }
        let groups = self.tagged_groups().await?;
        let mut used = BTreeSet::new();
        for instance in instances {
            let of_instance = || instance.all("groupSet/item").map(|group| group.get("groupId"));
            let tagged = of_instance().find(|id| groups.iter().any(|group| group.get("groupId") == *id));
            let tagged = tagged.ok_or_else(|| {
                let id = instance.get("instanceId");
                Error::Invalid(format!("no security group of instance {id} has the tag {}", self.cluster_tag()))
            })?;
            used.insert(tagged);
        }
        for group in &groups {
            let id = group.get("groupId");
            let present = present(group, balancer);
            let wanted = if used.contains(id) { wanted.clone() } else { BTreeSet::new() };
            self.authorize(id, balancer, wanted.difference(&present)).await?;
            self.revoke(id, balancer, present.difference(&wanted)).await?;
        }
        Ok(())
    }

    /// Takes all rules of a load balancer.
    pub(super) async fn delete_rules(&self, balancer: &str) -> Result<(), Error> {
        if self.settings.leaves_security_groups {
            return Ok(());
        }
        for group in self.tagged_groups().await? {
            let present = present(&group, balancer);
            self.revoke(group.get("groupId"), balancer, present.iter()).await?;
        }
        Ok(())
    }

    /// Returns the security groups with the cluster's tag.
    async fn tagged_groups(&self) -> Result<Vec<Element>, Error> {
        let call = Call::new("DescribeSecurityGroups").filter("tag-key", [self.cluster_tag()]);
        Ok(self.ec2.pages(&call, "securityGroupInfo/item", NEXT_TOKEN).await?)
    }

    /// Adds rules one by one: a rule that another Service has too is refused alone.
    async fn authorize(&self, group: &str, balancer: &str, rules: impl Iterator<Item = &Rule>) -> Result<(), Error> {
        for rule in rules {
            let call = with_rule(Call::new("AuthorizeSecurityGroupIngress"), group, balancer, rule);
            match self.ec2.call(&call).await {
                Err(refusal) if refusal.code != "InvalidPermission.Duplicate" => return Err(refusal.into()),
                _ => {}
            }
        }
        Ok(())
    }

    async fn revoke(&self, group: &str, balancer: &str, rules: impl Iterator<Item = &Rule>) -> Result<(), Error> {
        for rule in rules {
            let call = with_rule(Call::new("RevokeSecurityGroupIngress"), group, balancer, rule);
            match self.ec2.call(&call).await {
                Err(refusal) if refusal.code != "InvalidPermission.NotFound" => return Err(refusal.into()),
                _ => {}
            }
        }
        Ok(())
    }
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

fn with_rule(call: Call, group: &str, balancer: &str, rule: &Rule) -> Call {
    let range = match rule.cidr.contains(':') {
        true => ["IpPermissions.1.Ipv6Ranges.1.CidrIpv6", "IpPermissions.1.Ipv6Ranges.1.Description"],
        false => ["IpPermissions.1.IpRanges.1.CidrIp", "IpPermissions.1.IpRanges.1.Description"],
    };
    let [cidr_name, description_name] = range;
    call.with("GroupId", group)
        .with("IpPermissions.1.IpProtocol", rule.protocol)
        .with("IpPermissions.1.FromPort", rule.port.to_string())
        .with("IpPermissions.1.ToPort", rule.port.to_string())
        .with(cidr_name, rule.cidr.clone())
        .with(description_name, description(balancer))
}
