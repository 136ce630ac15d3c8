//! The provider behind a door, and the objects of a load balancer that moto has.

use std::sync::Arc;

use corten_cloud::provider::Provider;
use corten_cloud::providers::{Setup, open};
use testkit_aws::{Door, Moto};

/// The objects of a load balancer that AWS has.
#[derive(Debug, PartialEq, Eq)]
pub struct Left {
    pub balancers: usize,
    pub groups: usize,
    pub rules: usize,
}

/// Counts the load balancers, target groups and rules that carry a name.
pub fn left(moto: &Moto, name: &str) -> Left {
    let elb = |action: &str| moto.query("elasticloadbalancing", &format!("Action={action}&Version=2015-12-01"));
    let rules = moto.query("ec2", "Action=DescribeSecurityGroups&Version=2016-11-15");
    Left {
        balancers: elb("DescribeLoadBalancers").matches(&format!("<LoadBalancerName>{name}<")).count(),
        groups: elb("DescribeTargetGroups").matches("<TargetGroupName>").count(),
        rules: rules.matches(&format!("kubernetes.io/rule/nlb/client={name}<")).count(),
    }
}

/// Opens a provider that speaks to a door, as a new process would.
pub async fn open_provider(door: &Door) -> Arc<dyn Provider> {
    open("aws", &setup(door)).await.unwrap()
}

pub fn setup(door: &Door) -> Setup {
    let variables = door.variables();
    Setup {
        config: String::new(),
        cluster: "c".to_owned(),
        roots: String::new(),
        variable: Box::new(move |name| variables.get(name).cloned()),
    }
}
