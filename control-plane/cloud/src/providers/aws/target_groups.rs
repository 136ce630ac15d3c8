//! The target groups of a load balancer: created, changed, filled with the nodes, and deleted.

use std::sync::Arc;

use corten_aws::call::{Call, MARKER};
use corten_outbound::xml::Element;

use super::super::batch::Fetched;
use super::balancer::{MOST_TARGETS, attributes, changed_attributes, with_tags};
use super::compared::{Filled, Targets};
use super::options::Pair;
use super::recent::Since;
use super::tags::Listed;
use super::wanted::{Group, default_attributes, group_prefix};
use super::{ALL, Aws, MOST_LISTED, instances};
use crate::provider::{BalancerNode, Error};

/// The common parts of a load balancer's target groups.
pub struct Made<'a> {
    pub vpc: &'a str,
    pub tags: &'a [Pair],
    pub targets: &'a Targets,
}

impl Aws {
    /// Returns the target groups of a load balancer that have the cluster's tag, also those of no listener.
    pub(super) async fn own_groups(&self, balancer: &str, since: Since) -> Result<Vec<Element>, Error> {
        let prefix = group_prefix(&self.cluster, balancer);
        let all =
            self.shared.groups.get_since(ALL, since.lists, |_| Box::pin(self.all_groups())).await?.unwrap_or_default();
        let named: Vec<Element> =
            all.iter().filter(|group| group.get("TargetGroupName").starts_with(&prefix)).cloned().collect();
        let arns: Vec<&str> = named.iter().map(|group| group.get("TargetGroupArn")).collect();
        let ours = self.owned(&arns, &Listed::groups(&all), since.tags).await?;
        Ok(named.into_iter().filter(|group| ours.contains(group.get("TargetGroupArn"))).collect())
    }

    async fn all_groups(&self) -> Fetched<Arc<Vec<Element>>> {
        let call = Call::new("DescribeTargetGroups").with("PageSize", MOST_LISTED);
        let found = self.elb.pages(&call, "TargetGroups/member", MARKER).await?;
        Ok([(ALL.to_owned(), Arc::new(found))].into())
    }

    /// Makes a target group, or changes it to the wanted one, and gives it its targets; returns its ARN.
    pub(super) async fn ensure_group(
        &self,
        wanted: &Group,
        present: &[Element],
        balancer: &Made<'_>,
    ) -> Result<String, Error> {
        let found = present.iter().find(|group| group.get("TargetGroupName") == wanted.name);
        let Some(group) = found else {
            let arn = self.create_group(wanted, balancer.vpc, balancer.tags).await?;
            self.change_attributes(&arn, wanted, Vec::new()).await?;
            let filled = Filled { arn, node_port: wanted.node_port };
            self.change_targets(&filled, balancer.targets, &Targets::new()).await?;
            return Ok(filled.arn);
        };
        let arn = group.get("TargetGroupArn").to_owned();
        let has = |pair: &Pair| group.get(&pair.key.replace('.', "/")) == pair.value;
        if !wanted.health.parameters.iter().all(has) {
            let call = Call::new("ModifyTargetGroup").with("TargetGroupArn", &arn);
            self.elb.call(&with_health(call, wanted)).await?;
        }
        let described = Call::new("DescribeTargetGroupAttributes").with("TargetGroupArn", &arn);
        let described = attributes(&self.elb.call(&described).await?);
        self.change_attributes(&arn, wanted, described).await?;
        let present = self.registered(&arn).await?;
        let filled = Filled { arn, node_port: wanted.node_port };
        self.change_targets(&filled, balancer.targets, &present).await?;
        Ok(filled.arn)
    }

    async fn change_attributes(&self, arn: &str, wanted: &Group, mut present: Vec<Pair>) -> Result<(), Error> {
        for default in default_attributes() {
            if !present.iter().any(|pair| pair.key == default.key) {
                present.push(default);
            }
        }
        let change = Call::new("ModifyTargetGroupAttributes").with("TargetGroupArn", arn);
        if let Some(change) = changed_attributes(change, &present, &wanted.attributes) {
            self.elb.call(&change).await?;
        }
        Ok(())
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

    /// Returns the targets of a target group.
    async fn registered(&self, arn: &str) -> Result<Targets, Error> {
        let health = self.elb.call(&Call::new("DescribeTargetHealth").with("TargetGroupArn", arn)).await?;
        let present = health
            .all("TargetHealthDescriptions/member")
            .filter(|one| one.get("TargetHealth/State") != "draining")
            .map(|one| one.get("Target/Id").to_owned());
        Ok(present.collect())
    }

    /// Registers targets with a target group, and deregisters others.
    pub(super) async fn change_targets(
        &self,
        group: &Filled,
        wanted: &Targets,
        present: &Targets,
    ) -> Result<(), Error> {
        let missing: Vec<&String> = wanted.difference(present).collect();
        let surplus: Vec<&String> = present.difference(wanted).collect();
        for (action, ids) in [("RegisterTargets", missing), ("DeregisterTargets", surplus)] {
            for chunk in ids.chunks(MOST_TARGETS) {
                let mut call = Call::new(action).with("TargetGroupArn", &group.arn);
                for (index, id) in chunk.iter().enumerate() {
                    let target = format!("Targets.member.{}", index + 1);
                    call = call.with(format!("{target}.Id"), id.as_str());
                    call = call.with(format!("{target}.Port"), group.node_port.to_string());
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
pub fn targets(nodes: &[BalancerNode], target_type: &str) -> Result<Targets, Error> {
    let mut all = Targets::new();
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
