//! The tags of load balancers and target groups, which name their cluster.
//!
//! One call returns the tags of twenty objects. A question about fewer also asks for the tags of objects that are listed
//! behind them: Services that are reconciled together ask for those next.

use std::collections::BTreeSet;

use corten_aws::call::Call;
use corten_outbound::xml::Element;
use tokio::time::Instant;

use super::super::batch::Fetched;
use super::options::Pair;
use super::{Aws, MOST_TAGGED, OWNED};
use crate::provider::Error;

/// The objects of a list that may be the cluster's by their names, as ARNs.
pub struct Listed<'a>(Vec<&'a str>);

impl<'a> Listed<'a> {
    /// Returns the load balancers of a list that have a name of a Service.
    pub fn balancers(all: &'a [Element]) -> Listed<'a> {
        let is_usual = |name: &str| {
            name.strip_prefix('a').is_some_and(|uid| uid.bytes().all(|character| character.is_ascii_hexdigit()))
        };
        Listed::of(all, "LoadBalancer", is_usual)
    }

    /// Returns the target groups of a list that have a name of a Service's.
    pub fn groups(all: &'a [Element]) -> Listed<'a> {
        Listed::of(all, "TargetGroup", |name| name.starts_with("k8s-"))
    }

    fn of(all: &'a [Element], kind: &str, is_usual: impl Fn(&str) -> bool) -> Listed<'a> {
        let name = format!("{kind}Name");
        let arn = format!("{kind}Arn");
        Listed(all.iter().filter(|one| is_usual(one.get(&name))).map(|one| one.get(&arn)).collect())
    }

    /// Returns the objects that follow one, and then those before it.
    fn behind(&self, arn: &str) -> impl Iterator<Item = &'a str> + '_ {
        let place = self.0.iter().position(|one| *one == arn).unwrap_or_default();
        let (before, behind) = self.0.split_at(place);
        behind.iter().chain(before).copied()
    }
}

impl Aws {
    /// Reports whether tags are those of an object of the cluster.
    pub(super) fn is_ours(&self, tags: &[Pair]) -> bool {
        let tag = self.cluster_tag();
        tags.iter().any(|one| one.key == tag && one.value == OWNED)
    }

    /// Returns those of the ARNs whose object has the cluster's tag.
    pub(super) async fn owned(
        &self,
        arns: &[&str],
        listed: &Listed<'_>,
        since: Instant,
    ) -> Result<BTreeSet<String>, Error> {
        let described = futures::future::try_join_all(arns.iter().map(|arn| self.tags_of(arn, listed, since))).await?;
        let owned = arns.iter().zip(described).filter(|(_, tags)| self.is_ours(tags));
        Ok(owned.map(|(arn, _)| (*arn).to_owned()).collect())
    }

    /// Returns the tags of a load balancer or target group, as they were at this moment or later.
    pub(super) async fn tags_of(&self, arn: &str, listed: &Listed<'_>, since: Instant) -> Result<Vec<Pair>, Error> {
        let fetch = |arns: Vec<String>| {
            let room = MOST_TAGGED.saturating_sub(arns.len());
            let is_open = |one: &&str| !arns.iter().any(|asked| asked == one) && !self.shared.tags.has(one, since);
            let others: Vec<String> = listed.behind(arn).filter(is_open).take(room).map(str::to_owned).collect();
            Box::pin(self.fetch_tags(arns, others)) as _
        };
        let found = self.shared.tags.get_since(arn, since, fetch).await?;
        Ok(found.map(|described| pairs(&described, "Tags/member")).unwrap_or_default())
    }

    /// Fetches the tags of objects, and of others beside them. One of the others that was deleted since fails the call,
    /// which is repeated without them.
    async fn fetch_tags(&self, arns: Vec<String>, others: Vec<String>) -> Fetched<Element> {
        let describe = async |arns: &[&String]| {
            let described =
                self.elb.call(&Call::new("DescribeTags").list("ResourceArns.member", arns.iter().copied())).await?;
            let of_object = |one: &Element| (one.get("ResourceArn").to_owned(), one.clone());
            Ok(described.all("TagDescriptions/member").map(of_object).collect())
        };
        let all: Vec<&String> = arns.iter().chain(&others).collect();
        match describe(&all).await {
            Err(Error::Failed(_) | Error::Invalid(_)) if !others.is_empty() => {
                describe(&arns.iter().collect::<Vec<_>>()).await
            }
            described => described,
        }
    }
}

/// Returns the keys and values at a path of an answer.
pub fn pairs(described: &Element, path: &str) -> Vec<Pair> {
    let pair = |one: &Element| Pair { key: one.get("Key").to_owned(), value: one.get("Value").to_owned() };
    described.all(path).map(pair).collect()
}
