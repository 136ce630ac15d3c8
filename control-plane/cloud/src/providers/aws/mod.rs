//! AWS: instances of EC2, Network Load Balancers, and routes of a VPC.
//!
//! Every object that this provider makes has the tag `kubernetes.io/cluster/NAME` from its creation on, and only
//! objects with it are changed or deleted. Rules of security groups and routes have no tags: the former are found by
//! their description, in groups with the tag; the latter are those of the route table with the tag.

mod balancer;
mod compared;
mod instances;
mod options;
mod recent;
mod routes;
mod rules;
mod settings;
mod subnets;
mod tags;
mod target_groups;
mod wanted;

use std::sync::Arc;

use corten_aws::account::{EC2, ELB};
use corten_aws::{Account, Api, Environment, Refusal};
use corten_outbound::xml::Element;

use self::compared::AllCompared;
use self::recent::{Recent, TAGS_HELD};
use self::settings::Settings;
use super::Setup;
use super::batch::Batch;
use crate::provider::{Answer, Balancers, Error, Instance, NodeReference, Provider, Routes};

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
    shared: Shared,
    recent: Recent,
    compared: AllCompared,
}

/// The questions that many Services and nodes ask at the same time.
struct Shared {
    /// All load balancers, by [`ALL`].
    balancers: Batch<Arc<Vec<Element>>>,
    /// All target groups, by [`ALL`].
    groups: Batch<Arc<Vec<Element>>>,
    /// The tags of objects of Elastic Load Balancing, by ARN.
    tags: Batch<Element>,
    /// Instances by ID.
    instances: Batch<Element>,
    /// Instances by private DNS name.
    named_instances: Batch<Vec<Element>>,
    /// The subnets of a VPC, by its ID.
    subnets: Batch<Arc<Vec<Element>>>,
    /// The security groups with the cluster's tag, by [`ALL`].
    security_groups: Batch<Arc<Vec<Element>>>,
    /// The route tables of the cluster, by [`ALL`].
    route_tables: Batch<Arc<Vec<Element>>>,
}

/// The key of an answer that has all objects of a kind.
const ALL: &str = "";
/// The most objects whose tags one call returns.
const MOST_TAGGED: usize = 20;
/// The most load balancers or target groups of a page.
const MOST_LISTED: &str = "400";
/// The most values of a filter in one call.
const MOST_FILTERED: usize = 200;

impl Shared {
    fn new() -> Shared {
        Shared {
            balancers: Batch::new(usize::MAX),
            groups: Batch::new(usize::MAX),
            tags: Batch::held_for(TAGS_HELD, MOST_TAGGED),
            instances: Batch::new(MOST_FILTERED),
            named_instances: Batch::new(MOST_FILTERED),
            subnets: Batch::new(1),
            security_groups: Batch::new(usize::MAX),
            route_tables: Batch::new(usize::MAX),
        }
    }

    /// Forgets the answers.
    fn forget(&self) {
        let Shared { balancers, groups, tags, instances, named_instances, subnets, security_groups, route_tables } =
            self;
        for lists in [balancers, groups, subnets, security_groups, route_tables] {
            lists.forget();
        }
        tags.forget();
        instances.forget();
        named_instances.forget();
    }
}

/// Opens the provider.
pub async fn open(setup: &Setup) -> Result<Arc<dyn Provider>, String> {
    let settings = Settings::parse(&setup.config)?;
    let account = Account::open(&settings.preferences, environment(setup)).await?;
    let ec2 = account.api(EC2)?;
    let elb = account.api(ELB)?;
    let region = account.region.clone();
    let cluster = cluster(&settings, setup);
    let (shared, recent, compared) = (Shared::new(), Recent::default(), AllCompared::default());
    Ok(Arc::new(Aws { ec2, elb, region, cluster, settings, shared, recent, compared }))
}

/// The values that the volumes of a cluster are made by.
pub struct VolumeAccess {
    pub ec2: Api,
    pub region: String,
    /// The name of the cluster in tags.
    pub cluster: String,
}

/// Opens EC2 for the volumes of the cluster, with the settings of the provider.
pub async fn volume_access(setup: &Setup) -> Result<VolumeAccess, String> {
    let settings = Settings::parse(&setup.config)?;
    let account = Account::open(&settings.preferences, environment(setup)).await?;
    Ok(VolumeAccess { ec2: account.api(EC2)?, region: account.region.clone(), cluster: cluster(&settings, setup) })
}

fn environment(setup: &Setup) -> Environment<'_> {
    Environment { variable: &*setup.variable, roots: &setup.roots }
}

fn cluster(settings: &Settings, setup: &Setup) -> String {
    if settings.cluster.is_empty() { setup.cluster.clone() } else { settings.cluster.clone() }
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Error {
        match refusal.error {
            corten_aws::Error::Denied(message) => Error::Denied(message),
            corten_aws::Error::Throttled { message, after } => Error::Throttled { message, after },
            corten_aws::Error::Unknown(message) | corten_aws::Error::Refused(message) => Error::Failed(message),
        }
    }
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

    fn forget(&self) {
        self.shared.forget();
        self.recent.clear();
        self.compared.clear();
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
