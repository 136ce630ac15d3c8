//! Routes of the VPC to the pods of nodes, in the route table with the cluster's tag.
//!
//! The routes of many nodes are made by one list of the table and of their instances.

use std::sync::Arc;

use corten_aws::call::{Call, NEXT_TOKEN};
use corten_outbound::xml::Element;
use tokio::time::Instant;

use super::super::batch::Fetched;
use super::instances::{instance_id, provider_id};
use super::{ALL, Aws};
use crate::provider::{Answer, BalancerNode, Error, Route, Routes};

impl Aws {
    /// Returns the route table of the cluster: that of the configuration, or the one with the cluster's tag.
    /// The answer is as old as this moment at most.
    async fn route_table(&self, since: Instant) -> Result<Element, Error> {
        let found = self.shared.route_tables.get_since(ALL, since, |_| Box::pin(self.route_tables())).await?;
        let tag = self.cluster_tag();
        match found.unwrap_or_default().as_slice() {
            [table] => Ok(table.clone()),
            [] => Err(Error::Invalid(format!("no route table has the tag {tag}"))),
            _ => Err(Error::Invalid(format!("several route tables have the tag {tag}: name one by RouteTableID"))),
        }
    }

    async fn route_tables(&self) -> Fetched<Arc<Vec<Element>>> {
        let call = Call::new("DescribeRouteTables");
        let call = match self.settings.route_table.as_str() {
            "" => call.filter("tag-key", [self.cluster_tag()]),
            id => call.list("RouteTableId", [id]),
        };
        let found = self.ec2.pages(&call, "routeTableSet/item", NEXT_TOKEN).await?;
        Ok([(ALL.to_owned(), Arc::new(found))].into())
    }

    async fn routes_of(&self) -> Result<Vec<Route>, Error> {
        let table = self.route_table(Instant::now()).await?;
        let routes: Vec<&Element> =
            table.all("routeSet/item").filter(|route| !route.get("instanceId").is_empty()).collect();
        let ids: Vec<String> = routes.iter().map(|route| route.get("instanceId").to_owned()).collect();
        let instances = self.described(&ids, Instant::now()).await?;
        let route = |route: &&Element| {
            let id = route.get("instanceId");
            let instance = instances.iter().find(|one| one.get("instanceId") == id);
            let zone = instance.map_or("", |one| one.get("placement/availabilityZone"));
            let node = BalancerNode {
                name: instance.map_or("", |one| one.get("privateDnsName")).to_owned(),
                provider_id: provider_id(zone, id),
                internal_addresses: Vec::new(),
            };
            Route { node, cidr: destination(route).to_owned() }
        };
        Ok(routes.iter().map(route).filter(|route| !route.cidr.is_empty()).collect())
    }

    /// Creates a route, by lists that are recent enough.
    async fn create(&self, route: &Route) -> Result<(), Error> {
        let created = self.create_since(route, self.recent.since(&route.cidr).lists).await;
        self.recent.note(&route.cidr);
        created
    }

    async fn create_since(&self, route: &Route, since: Instant) -> Result<(), Error> {
        let table = self.route_table(since).await?;
        let id = instance_id(&route.node.provider_id)?;
        let instances = self.described(&[id.to_owned()], since).await?;
        // An instance that passes on packets of pods has addresses in them that are not its own.
        if !instances.iter().any(|one| one.get("sourceDestCheck") == "false") {
            let call =
                Call::new("ModifyInstanceAttribute").with("InstanceId", id).with("SourceDestCheck.Value", "false");
            self.ec2.call(&call).await?;
        }
        let present = table.all("routeSet/item").find(|one| destination(one) == route.cidr);
        let action = match present {
            None => "CreateRoute",
            Some(present) if present.get("instanceId") == id && present.get("state") != "blackhole" => return Ok(()),
            // The instance of the route is gone, or the pod CIDR has moved.
            Some(present) if !present.get("instanceId").is_empty() => "ReplaceRoute",
            Some(_) => {
                let table = table.get("routeTableId");
                let sentence = format!("the route {} of {table} leads to no instance, and is not ours", route.cidr);
                return Err(Error::Invalid(sentence));
            }
        };
        let call = with_route(Call::new(action), &table, route).with("InstanceId", id);
        self.ec2.call(&call).await?;
        Ok(())
    }

    async fn delete(&self, route: &Route) -> Result<(), Error> {
        let table = self.route_table(self.recent.since(&route.cidr).lists).await?;
        self.recent.note(&route.cidr);
        match self.ec2.call(&with_route(Call::new("DeleteRoute"), &table, route)).await {
            Err(refusal) if refusal.code != "InvalidRoute.NotFound" => Err(refusal.into()),
            _ => Ok(()),
        }
    }
}

fn destination(route: &Element) -> &str {
    match route.get("destinationCidrBlock") {
        "" => route.get("destinationIpv6CidrBlock"),
        cidr => cidr,
    }
}

fn with_route(call: Call, table: &Element, route: &Route) -> Call {
    let is_ipv6 = route.cidr.contains(':');
    let name = if is_ipv6 { "DestinationIpv6CidrBlock" } else { "DestinationCidrBlock" };
    call.with("RouteTableId", table.get("routeTableId")).with(name, route.cidr.clone())
}

impl Routes for Aws {
    fn list_routes(&self) -> Answer<'_, Vec<Route>> {
        Box::pin(self.routes_of())
    }

    fn create_route<'a>(&'a self, route: &'a Route) -> Answer<'a, ()> {
        Box::pin(self.create(route))
    }

    fn delete_route<'a>(&'a self, route: &'a Route) -> Answer<'a, ()> {
        Box::pin(self.delete(route))
    }
}
