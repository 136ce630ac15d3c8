//! Valid documents and their configuration; invalid documents and their errors.

use super::*;
use crate::plugins::PLUGINS;
use serde_json::json;

fn read(fields: Value) -> Result<Config, String> {
    let mut document = json!({"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"});
    corten_meta::patch::merge_patch(&mut document, &fields);
    Config::from_document(document).map_err(|error| error.to_string())
}

fn names(config: &Config, point: Point) -> Vec<&str> {
    config.profiles[0].points.get(&point).into_iter().flatten().map(|plugin| plugin.name.as_str()).collect()
}

#[test]
fn an_empty_document_is_the_default() {
    let config = read(json!({})).unwrap();
    assert_eq!(config.profiles[0].scheduler_name, "default-scheduler");
    assert_eq!(config.profiles[0].points, ProfileSpec::default().points);
    assert_eq!(config.leader_election, Some(Election::default()));
    assert_eq!(PLUGINS.len(), 20);
}

#[test]
fn plugins_are_enabled_disabled_and_weighed() {
    let plugins = json!({
        "multiPoint": {"disabled": [{"name": "ImageLocality"}], "enabled": [{"name": "NodeAffinity", "weight": 7}]},
        "score": {"disabled": [{"name": "TaintToleration"}], "enabled": [{"name": "NodeResourcesFit", "weight": 5}]},
        "filter": {"disabled": [{"name": "*"}], "enabled": [{"name": "NodeName"}]},
    });
    let config = read(json!({"profiles": [{"plugins": plugins}]})).unwrap();
    assert_eq!(names(&config, Point::Filter), ["NodeName"]);
    let scores = &config.profiles[0].points[&Point::Score];
    let scores: Vec<(&str, i64)> = scores.iter().map(|plugin| (plugin.name.as_str(), plugin.weight)).collect();
    let expected = [
        ("NodeResourcesFit", 5),
        ("NodeAffinity", 7),
        ("PodTopologySpread", 2),
        ("InterPodAffinity", 2),
        ("DynamicResources", 2),
        ("NodeResourcesBalancedAllocation", 1),
    ];
    assert_eq!(scores, expected);
}

#[test]
fn several_schedulers_live_in_one_process() {
    let most = json!({"scoringStrategy": {"type": "MostAllocated", "resources": [{"name": "cpu", "weight": 3}]}});
    let config = read(json!({"percentageOfNodesToScore": 30, "profiles": [
        {"schedulerName": "one"},
        {"schedulerName": "two", "percentageOfNodesToScore": 70,
         "pluginConfig": [{"name": "NodeResourcesFit", "args": most}]},
    ]}))
    .unwrap();
    let shares: Vec<(&str, usize)> =
        config.profiles.iter().map(|p| (p.scheduler_name.as_str(), p.percentage_of_nodes_to_score)).collect();
    assert_eq!(shares, [("one", 30), ("two", 70)]);
    let fit = config.profiles[1].args.node_resources_fit();
    assert_eq!(fit.strategy, crate::plugins::node_resources::Strategy::MostAllocated);
    assert_eq!(fit.resources[0].weight, 3);
}

#[test]
fn every_field_of_an_extender_is_read() {
    let config = read(json!({"extenders": [{"urlPrefix": "http://127.0.0.1:8888/base/", "filterVerb": "filter",
        "prioritizeVerb": "rank", "weight": 2, "httpTimeout": "1m0.5s", "nodeCacheCapable": true, "ignorable": true,
        "managedResources": [{"name": "example.com/foo", "ignoredByScheduler": true}]}]}))
    .unwrap();
    let extender = &config.extenders[0];
    assert_eq!((extender.url_prefix.as_str(), extender.weight), ("http://127.0.0.1:8888/base", 2));
    assert_eq!(extender.timeout, Duration::from_millis(60_500));
    assert_eq!(config.profiles[0].args.node_resources_fit().ignored_resources, ["example.com/foo"]);
}

#[test]
fn what_is_wrong_is_refused_by_name() {
    let plugin = |plugins: Value| json!({"profiles": [{"plugins": plugins}]});
    let args = |name: &str, args: Value| json!({"profiles": [{"pluginConfig": [{"name": name, "args": args}]}]});
    for (fields, why) in [
        (json!({"kind": "Other"}), "expected kubescheduler.config.k8s.io/v1 KubeSchedulerConfiguration"),
        (json!({"profile": []}), "unknown field `profile`"),
        (json!({"parallelism": 0}), "parallelism"),
        (json!({"profiles": [{"schedulerName": "a"}, {"schedulerName": "a"}]}), "is there twice"),
        (json!({"percentageOfNodesToScore": 101}), "percentageOfNodesToScore"),
        (plugin(json!({"filter": {"enabled": [{"name": "Nothing"}]}})), "\"Nothing\" does not exist"),
        (plugin(json!({"score": {"enabled": [{"name": "NodeName"}]}})), "NodeName has nothing to do at Score"),
        (plugin(json!({"queueSort": {"disabled": [{"name": "*"}]}})), "exactly one queue sort plugin"),
        (plugin(json!({"bind": {"disabled": [{"name": "*"}]}})), "at least one bind plugin"),
        (args("NodeResourcesFit", json!({"strategy": {}})), "NodeResourcesFit: unknown field `strategy`"),
        (args("NodeName", json!({"x": 1})), "NodeName: the plugin takes no arguments"),
        (args("InterPodAffinity", json!({"hardPodAffinityWeight": 101})), "hardPodAffinityWeight"),
        (args("InterPodAffinity", json!({"kind": "NodeAffinityArgs"})), "kind must be InterPodAffinityArgs"),
        (
            args("PodTopologySpread", json!({"defaultConstraints": [{"maxSkew": 1}]})),
            "defaultConstraints: needs defaultingType List",
        ),
        (json!({"extenders": [{"urlPrefix": "x"}]}), "urlPrefix"),
        (json!({"leaderElection": {"leaseDuration": "99999999999999999999s"}}), "is too long a duration"),
        (
            json!({"leaderElection": {"leaseDuration": "18446744073709549568s18446744073709549568s"}}),
            "too long a duration",
        ),
        (json!({"leaderElection": {"leaseDuration": "1s"}}), "leaseDuration must exceed renewDeadline"),
    ] {
        let message = read(fields.clone()).expect_err("must be refused");
        assert!(message.contains(why), "{fields}: {message}");
    }
}
