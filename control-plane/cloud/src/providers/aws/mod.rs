//! AWS: instances of EC2, Network Load Balancers, and routes of a VPC.
//!
//! Every object that this provider makes has the tag `kubernetes.io/cluster/NAME` from its creation on, and only
//! objects with it are changed or deleted. Rules of security groups and routes have no tags: the former are found by
//! their description, in groups with the tag; the latter are those of the route table with the tag.

mod balancer;
mod call;
mod credentials;
mod instances;
mod options;
mod routes;
mod rules;
mod settings;
mod subnets;
mod target_groups;
mod wanted;

use std::sync::Arc;

use corten_outbound::xml::Element;

use self::call::Api;
use self::credentials::Identity;
use self::settings::{EC2, ELB, Settings};
use super::Setup;
use crate::provider::{Answer, Balancers, Instance, NodeReference, Provider, Routes};

/// The scheme of provider IDs.
const NAME: &str = "aws";
/// The value of the cluster's tag at objects that the cluster made.
const OWNED: &str = "owned";

pub struct Aws {
    ec2: Api,
    elb: Api,
    region: String,
    cluster: String,
    settings: Settings,
}

/// Opens the provider.
pub async fn open(setup: &Setup) -> Result<Arc<dyn Provider>, String> {
    let mut settings = Settings::parse(&setup.config)?;
    let known = Some(std::mem::take(&mut settings.region)).filter(|region| !region.is_empty());
    let known = known.or_else(|| (setup.variable)("AWS_REGION")).or_else(|| (setup.variable)("AWS_DEFAULT_REGION"));
    let region = match known {
        Some(region) => region,
        None => settings::metadata(setup)?
            .region()
            .await
            .map_err(|error| format!("no region: set AWS_REGION, or Region in the cloud configuration ({error})"))?,
    };
    let identity = Arc::new(Identity::new(settings::source(&settings, setup, &region)?));
    let api = |service: settings::Service, version| {
        let endpoint = settings.endpoint(service, setup, &region)?;
        Ok::<Api, String>(Api {
            endpoint,
            service: service.name,
            version,
            region: region.clone(),
            identity: Arc::clone(&identity),
        })
    };
    let ec2 = api(EC2, "2016-11-15")?;
    let elb = api(ELB, "2015-12-01")?;
    let cluster = if settings.cluster.is_empty() { setup.cluster.clone() } else { settings.cluster.clone() };
    Ok(Arc::new(Aws { ec2, elb, region, cluster, settings }))
}

impl Aws {
    /// Returns the key of the tag of the cluster's objects.
    fn cluster_tag(&self) -> String {
        format!("kubernetes.io/cluster/{}", self.cluster)
    }
}

/// Returns the value of a tag in a `tagSet` of EC2.
fn tag<'a>(element: &'a Element, key: &str) -> Option<&'a str> {
    element.all("tagSet/item").find(|tag| tag.get("key") == key).map(|tag| tag.get("value"))
}

impl Provider for Aws {
    fn name(&self) -> &'static str {
        NAME
    }

    fn instance<'a>(&'a self, node: &'a NodeReference) -> Answer<'a, Option<Instance>> {
        Box::pin(self.instance_of(node))
    }

    fn balancers(&self) -> Option<&dyn Balancers> {
        Some(self)
    }

    fn routes(&self) -> Option<&dyn Routes> {
        Some(self)
    }
}
