//! The target groups of a load balancer: created, changed, filled with the nodes, and deleted.

use std::collections::BTreeSet;

use corten_outbound::xml::Element;

use super::balancer::{MOST_TARGETS, with_tags};
use super::call::{Call, MARKER};
use super::options::Pair;
use super::wanted::{Group, group_prefix};
use super::{Aws, instances};
use crate::provider::{BalancerNode, Error};

impl Aws {
    /// Returns the target groups of a load balancer that have the cluster's tag, also those of no listener.
    pub(super) async fn own_groups(&self, balancer: &str) -> Result<Vec<Element>, Error> {
        let prefix = group_prefix(&self.cluster, balancer);
        let all = self.elb.pages(&Call::new("DescribeTargetGroups"), "TargetGroups/member", MARKER).await?;
        let named: Vec<Element> =
            all.into_iter().filter(|group| group.get("TargetGroupName").starts_with(&prefix)).collect();
        let arns: Vec<&str> = named.iter().map(|group| group.get("TargetGroupArn")).collect();
        let ours = self.owned(&arns).await?;
        Ok(named.into_iter().filter(|group| ours.contains(group.get("TargetGroupArn"))).collect())
    }

    /// Makes a target group, or changes it to the wanted one; returns its ARN.
    pub(super) async fn ensure_group(
        &self,
        wanted: &Group,
        present: &[Element],
        vpc: &str,
        tags: &[Pair],
    ) -> Result<String, Error> {
        let found = present.iter().find(|group| group.get("TargetGroupName") == wanted.name);
        let arn = match found {
            Some(group) => {
                let arn = group.get("TargetGroupArn").to_owned();
                let has = |pair: &Pair| group.get(&pair.key.replace('.', "/")) == pair.value;
                if !wanted.health.parameters.iter().all(has) {
                    let call = Call::new("ModifyTargetGroup").with("TargetGroupArn", &arn);
                    self.elb.call(&with_health(call, wanted)).await?;
                }
                arn
            }
            None => self.create_group(wanted, vpc, tags).await?,
        };
        let described = Call::new("DescribeTargetGroupAttributes").with("TargetGroupArn", &arn);
        let described = self.elb.call(&described).await?;
        let change = Call::new("ModifyTargetGroupAttributes").with("TargetGroupArn", &arn);
        if let Some(change) = super::balancer::changed_attributes(change, &described, &wanted.attributes) {
            self.elb.call(&change).await?;
        }
        Ok(arn)
    }

    async fn create_group(&self, wanted: &Group, vpc: &str, tags: &[Pair]) -> Result<String, Error> {
        let call = Call::new("CreateTargetGroup")
            .with("Name", &wanted.name)
            .with("Protocol", wanted.protocol)
            .with("Port", wanted.node_port.to_string())
            .with("VpcId", vpc)
            .with("TargetType", wanted.target_type);
        let made = self.elb.call(&with_tags(with_health(call, wanted), tags)).await?;
        let arn = made.get("TargetGroups/member/TargetGroupArn").to_owned();
        if arn.is_empty() { Err(Error::Failed("AWS gave no ARN for a target group".to_owned())) } else { Ok(arn) }
    }

    /// Registers the nodes with a target group, and deregisters others.
    pub(super) async fn ensure_targets(
        &self,
        arn: &str,
        target_type: &str,
        node_port: u16,
        nodes: &[BalancerNode],
    ) -> Result<(), Error> {
        let wanted = targets(nodes, target_type)?;
        let health = self.elb.call(&Call::new("DescribeTargetHealth").with("TargetGroupArn", arn)).await?;
        let present: BTreeSet<String> = health
            .all("TargetHealthDescriptions/member")
            .filter(|one| one.get("TargetHealth/State") != "draining")
            .map(|one| one.get("Target/Id").to_owned())
            .collect();
        let missing: Vec<&String> = wanted.difference(&present).collect();
        let surplus: Vec<&String> = present.difference(&wanted).collect();
        for (action, ids) in [("RegisterTargets", missing), ("DeregisterTargets", surplus)] {
            for chunk in ids.chunks(MOST_TARGETS) {
                let mut call = Call::new(action).with("TargetGroupArn", arn);
                for (index, id) in chunk.iter().enumerate() {
                    let target = format!("Targets.member.{}", index + 1);
                    call = call.with(format!("{target}.Id"), id.as_str());
                    call = call.with(format!("{target}.Port"), node_port.to_string());
                }
                self.elb.call(&call).await?;
            }
        }
        Ok(())
    }

    /// Deletes target groups; those that are gone are no error.
    pub(super) async fn delete_groups<'a>(&self, groups: impl Iterator<Item = &'a Element>) -> Result<(), Error> {
        for group in groups {
            let call = Call::new("DeleteTargetGroup").with("TargetGroupArn", group.get("TargetGroupArn"));
            match self.elb.call(&call).await {
                Err(refusal) if refusal.code != "TargetGroupNotFound" => return Err(refusal.into()),
                _ => {}
            }
        }
        Ok(())
    }
}

fn with_health(call: Call, wanted: &Group) -> Call {
    wanted.health.parameters.iter().fold(call, |call, pair| call.with(&pair.key, &pair.value))
}

/// Returns the IDs of the nodes as targets: instances, or addresses.
fn targets(nodes: &[BalancerNode], target_type: &str) -> Result<BTreeSet<String>, Error> {
    let mut all = BTreeSet::new();
    for node in nodes {
        match target_type {
            "ip" => {
                let address = node.internal_addresses.iter().find(|address| address.is_ipv4());
                all.extend(address.map(ToString::to_string));
            }
            _ => {
                all.insert(instances::instance_id(&node.provider_id)?.to_owned());
            }
        }
    }
    Ok(all)
}
