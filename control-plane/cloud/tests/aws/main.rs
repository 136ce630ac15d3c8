//! The provider of AWS against moto's server, judged by boto3 and raw queries.
//!
//! The tests need `moto[server,ec2,elbv2]` and boto3: `MOTO_SERVER` names the program `moto_server` of their Python
//! environment. Without it the tests say so and pass.

#![allow(clippy::unwrap_used, reason = "a test stops at what it does not expect")]

mod moto;

use std::collections::BTreeMap;

use corten_cloud::provider::{
    Annotation, Balancer, BalancerNode, BalancerPort, BalancerStatus, Error, NodeReference, Provider, Route,
};
use corten_cloud::providers::{Setup, open};
use corten_cloud::{CONTROLLERS, Config};
use corten_meta::Key;
use futures::StreamExt as _;
use serde_json::{Value, json};
use testkit::eventually::eventually;
use testkit::server::TestServer;
use testkit_aws::{Door, Fault, Moto};
use tokio_util::sync::CancellationToken;

use moto::{Left, left, open_provider, setup};

/// Prints everything that a load balancer consists of.
const STATE: &str = "
out = []
for b in elb.describe_load_balancers()['LoadBalancers']:
    listeners = elb.describe_listeners(LoadBalancerArn=b['LoadBalancerArn'])['Listeners']
    of = lambda l: l['DefaultActions'][0]['TargetGroupArn']
    targets = lambda l: sorted((h['Target']['Id'], h['Target']['Port'])
        for h in elb.describe_target_health(TargetGroupArn=of(l))['TargetHealthDescriptions'])
    attributes = lambda l: {a['Key']: a['Value']
        for a in elb.describe_target_group_attributes(TargetGroupArn=of(l))['Attributes']}
    tags = elb.describe_tags(ResourceArns=[b['LoadBalancerArn']])['TagDescriptions'][0]['Tags']
    own = {a['Key']: a['Value'] for a in elb.describe_load_balancer_attributes(
        LoadBalancerArn=b['LoadBalancerArn'])['Attributes']}
    out.append(dict(name=b['LoadBalancerName'], scheme=b['Scheme'], type=b['Type'], dns=b['DNSName'],
        subnets=sorted(z['SubnetId'] for z in b['AvailabilityZones']), tags={t['Key']: t['Value'] for t in tags},
        cross_zone=own.get('load_balancing.cross_zone.enabled'),
        listeners=[dict(port=l['Port'], protocol=l['Protocol'], targets=targets(l),
            proxy=attributes(l).get('proxy_protocol_v2.enabled')) for l in listeners]))
groups = len(elb.describe_target_groups()['TargetGroups'])
rules = sorted([p['FromPort'], r['CidrIp'], r.get('Description', '')] for g in ec2.describe_security_groups(
    Filters=[dict(Name='group-name', Values=['nodes'])])['SecurityGroups'] for p in g['IpPermissions']
    for r in p['IpRanges'])
print(json.dumps(dict(balancers=out, groups=groups, rules=rules)))
";

fn nodes(world: &Value, count: usize) -> Vec<BalancerNode> {
    let text = |node: &Value, name: &str| node[name].as_str().unwrap().to_owned();
    let node = |node: &Value| BalancerNode {
        name: text(node, "name"),
        provider_id: format!("aws:///{}/{}", text(node, "zone"), text(node, "id")),
        internal_addresses: vec![text(node, "ip").parse().unwrap()],
    };
    world["nodes"].as_array().unwrap()[..count].iter().map(node).collect()
}

fn balancer(name: &str, nodes: Vec<BalancerNode>, annotations: &[(&str, &str)]) -> Balancer {
    let port = |name: &str, port, node_port| BalancerPort {
        name: name.to_owned(),
        protocol: "TCP".to_owned(),
        port,
        node_port,
    };
    let annotation = |(name, value): &(&str, &str)| Annotation {
        name: format!("service.beta.kubernetes.io/aws-load-balancer-{name}"),
        value: (*value).to_owned(),
    };
    Balancer {
        name: name.to_owned(),
        service: Key::new("default", "web"),
        ports: vec![port("http", 80, 30080), port("https", 443, 30443)],
        nodes,
        source_ranges: vec!["198.51.100.0/24".to_owned()],
        health_check_port: None,
        requested_address: None,
        annotations: annotations.iter().map(annotation).collect(),
    }
}

async fn ensure(provider: &dyn Provider, wanted: &Balancer) -> Result<BalancerStatus, Error> {
    provider.balancers().unwrap().ensure_balancer(wanted).await
}

async fn delete(provider: &dyn Provider, name: &str) -> Result<(), Error> {
    provider.balancers().unwrap().delete_balancer(name).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_load_balancer_is_made_changed_and_deleted_whole() {
    let Some(moto) = Moto::start() else { return };
    let world = moto.world(3);
    let door = Door::before(&moto);
    let provider = open_provider(&door).await;
    let wanted = balancer("a1", nodes(&world, 2), &[("additional-resource-tags", "team=a"), ("who", "knows")]);
    let status = ensure(&*provider, &wanted).await.unwrap();
    assert_eq!(
        status.warnings,
        ["the annotation service.beta.kubernetes.io/aws-load-balancer-who is not known and has no effect"]
    );
    let state = moto.boto3(STATE);
    let made = &state["balancers"][0];
    assert_eq!((&made["type"], &made["scheme"]), (&json!("network"), &json!("internet-facing")));
    assert_eq!(made["subnets"].as_array().unwrap().len(), 2);
    assert_eq!(
        made["tags"],
        json!({"kubernetes.io/cluster/c": "owned", "kubernetes.io/service-name": "default/web", "team": "a"})
    );
    let mut ids: Vec<&str> =
        world["nodes"].as_array().unwrap().iter().map(|node| node["id"].as_str().unwrap()).collect();
    ids.truncate(2);
    ids.sort_unstable();
    let target = |port: u16| json!([[ids[0], port], [ids[1], port]]);
    assert_eq!(made["listeners"][0]["targets"], target(30080));
    assert_eq!(made["listeners"][1]["targets"], target(30443));
    let rules = state["rules"].as_array().unwrap();
    assert!(rules.contains(&json!([30080, "198.51.100.0/24", "kubernetes.io/rule/nlb/client=a1"])), "{rules:?}");
    assert!(rules.contains(&json!([22, "192.0.2.0/24", "mine"])), "{rules:?}");

    // A second call changes nothing, nor does that of another process.
    ensure(&*provider, &wanted).await.unwrap();
    ensure(&*open_provider(&door).await, &wanted).await.unwrap();
    assert_eq!(moto.boto3(STATE), state);

    // A node, a port, the source ranges and the annotations change.
    let annotations = [("proxy-protocol", "*"), ("cross-zone-load-balancing-enabled", "true")];
    let mut changed = balancer("a1", nodes(&world, 3)[1..].to_vec(), &annotations);
    changed.ports.truncate(1);
    changed.ports[0].node_port = 30081;
    changed.source_ranges.clear();
    ensure(&*provider, &changed).await.unwrap();
    let state = moto.boto3(STATE);
    let made = &state["balancers"][0];
    assert_eq!(state["groups"], 1);
    assert_eq!(made["cross_zone"], "true");
    assert_eq!(made["listeners"].as_array().unwrap().len(), 1);
    assert_eq!(made["listeners"][0]["proxy"], "true");
    let mut ids: Vec<&str> = changed.nodes.iter().map(|node| node.provider_id.rsplit('/').next().unwrap()).collect();
    ids.sort_unstable();
    assert_eq!(made["listeners"][0]["targets"], json!([[ids[0], 30081], [ids[1], 30081]]));
    assert!(!state["rules"].to_string().contains("30080"), "{}", state["rules"]);

    delete(&*provider, "a1").await.unwrap();
    delete(&*provider, "a1").await.unwrap();
    let state = moto.boto3(STATE);
    assert_eq!((&state["balancers"], &state["groups"]), (&json!([]), &json!(0)));
    assert_eq!(state["rules"], json!([[22, "192.0.2.0/24", "mine"]]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_manager_that_is_killed_after_any_call_leaves_nothing_behind() {
    let Some(moto) = Moto::start() else { return };
    let world = moto.world(3);
    let door = Door::before(&moto);
    let wanted = |name: &str| balancer(name, nodes(&world, 2), &[("cross-zone-load-balancing-enabled", "true")]);
    ensure(&*open_provider(&door).await, &wanted("calm")).await.unwrap();
    let calls = door.calls();
    assert!(calls > 10, "{calls}");
    let whole = left(&moto, "calm");
    assert_eq!((whole.balancers, whole.groups), (1, 2));
    door.set(Fault::None);
    delete(&*open_provider(&door).await, "calm").await.unwrap();
    let deleting = door.calls();
    let nothing = Left { balancers: 0, groups: 0, rules: 0 };
    assert_eq!(left(&moto, "calm"), nothing);
    for last in 0..calls {
        // The next manager finishes the load balancer, or deletes its parts.
        for finishes in [true, false] {
            let name = format!("k{last}{finishes}");
            door.kill(last, ensure(&*open_provider(&door).await, &wanted(&name))).await;
            let next = open_provider(&door).await;
            if finishes {
                ensure(&*next, &wanted(&name)).await.unwrap();
                assert_eq!(left(&moto, &name), whole, "killed after call {last}");
            }
            delete(&*next, &name).await.unwrap();
            assert_eq!(left(&moto, &name), nothing, "killed after call {last}");
        }
    }
    for last in 0..deleting {
        let name = format!("d{last}");
        ensure(&*open_provider(&door).await, &wanted(&name)).await.unwrap();
        door.kill(last, delete(&*open_provider(&door).await, &name)).await;
        delete(&*open_provider(&door).await, &name).await.unwrap();
        assert_eq!(left(&moto, &name), nothing, "killed while deleting after call {last}");
    }
}

/// Returns the IDs of the targets of a load balancer's listeners, in their order.
fn registered(moto: &Moto, name: &str) -> Vec<Vec<String>> {
    let state = moto.boto3(STATE);
    let all = state["balancers"].as_array().unwrap();
    let balancer = all.iter().find(|one| one["name"] == name).unwrap();
    let ids = |listener: &Value| {
        let targets = listener["targets"].as_array().unwrap().iter();
        targets.map(|target| target[0].as_str().unwrap().to_owned()).collect()
    };
    balancer["listeners"].as_array().unwrap().iter().map(ids).collect()
}

/// Returns the IDs of nodes as targets, in order.
fn target_ids(nodes: &[BalancerNode]) -> Vec<String> {
    let id = |node: &BalancerNode| node.provider_id.rsplit('/').next().unwrap().to_owned();
    let mut ids: Vec<String> = nodes.iter().map(id).collect();
    ids.sort_unstable();
    ids
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_that_come_and_go_cost_one_call_for_each_target_group() {
    let Some(moto) = Moto::start() else { return };
    let world = moto.world(4);
    let all = nodes(&world, 4);
    let door = Door::before(&moto);
    let provider = open_provider(&door).await;
    let wanted = |nodes: &[BalancerNode]| balancer("a1", nodes.to_vec(), &[]);
    ensure(&*provider, &wanted(&all[..2])).await.unwrap();
    let change = async |nodes: &[BalancerNode]| {
        door.set(Fault::None);
        ensure(&*provider, &wanted(nodes)).await.unwrap();
        let expected = target_ids(nodes);
        assert_eq!(registered(&moto, "a1"), [expected.clone(), expected]);
        door.actions().into_iter().map(|(name, count)| format!("{name} {count}")).collect::<Vec<_>>()
    };
    assert_eq!(change(&all[..3]).await, ["DescribeInstances 1", "RegisterTargets 2"]);
    assert_eq!(change(&all[1..3]).await, ["DeregisterTargets 2"]);
    assert_eq!(change(&all[1..3]).await, Vec::<String>::new());

    // An instance whose packets another security group lets in needs the rules there.
    let id = all[3].provider_id.rsplit('/').next().unwrap();
    moto.boto3(&format!(
        "tags = [dict(ResourceType='security-group', Tags=[dict(Key='kubernetes.io/cluster/c', Value='owned')])]\n\
         g = ec2.create_security_group(GroupName='others', Description='d', VpcId='{}', TagSpecifications=tags)['GroupId']\n\
         ec2.modify_instance_attribute(InstanceId='{id}', Groups=[g])\nprint('1')",
        world["vpc"].as_str().unwrap()
    ));
    provider.forget();
    ensure(&*provider, &wanted(&all[1..3])).await.unwrap();
    let rules = left(&moto, "a1").rules;
    change(&all[1..4]).await;
    assert_eq!(left(&moto, "a1").rules, 2 * rules);

    // Another process has changed the load balancer: moto refuses to deregister what is not registered.
    ensure(&*open_provider(&door).await, &wanted(&all[1..2])).await.unwrap();
    change(&all[1..2]).await;
    delete(&*provider, "a1").await.unwrap();
    assert_eq!(left(&moto, "a1"), Left { balancers: 0, groups: 0, rules: 0 });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_node_survives_failing_calls_and_a_killed_manager() {
    let Some(moto) = Moto::start() else { return };
    let world = moto.world(4);
    let all = nodes(&world, 4);
    let door = Door::before(&moto);
    let wanted = |nodes: &[BalancerNode]| balancer("a1", nodes.to_vec(), &[]);
    let provider = open_provider(&door).await;
    ensure(&*provider, &wanted(&all)).await.unwrap();
    for seed in 0..12_u64 {
        let first = usize::try_from(seed % 3).unwrap();
        let nodes = &all[first..first + 2];
        door.set(Fault::Random(seed * 1_000));
        let mut rounds = 0;
        while let Err(error) = ensure(&*provider, &wanted(nodes)).await {
            rounds += 1;
            assert!(rounds < 50, "{error}");
        }
        assert_eq!(registered(&moto, "a1"), [target_ids(nodes), target_ids(nodes)], "seed {seed}");
    }
    door.set(Fault::None);
    for last in 0..4 {
        let ending = open_provider(&door).await;
        ensure(&*ending, &wanted(&all[..2])).await.unwrap();
        door.kill(last, ensure(&*ending, &wanted(&all[2..]))).await;
        ensure(&*open_provider(&door).await, &wanted(&all[2..])).await.unwrap();
        assert_eq!(registered(&moto, "a1"), [target_ids(&all[2..]), target_ids(&all[2..])], "killed after call {last}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn failing_and_throttled_calls_are_survived() {
    let Some(moto) = Moto::start() else { return };
    let world = moto.world(3);
    let door = Door::before(&moto);
    let provider = open_provider(&door).await;
    for seed in 0..6 {
        let name = format!("r{seed}");
        let wanted = balancer(&name, nodes(&world, 3), &[]);
        door.set(Fault::Random(seed * 1_000));
        let mut rounds = 0;
        while let Err(error) = ensure(&*provider, &wanted).await {
            rounds += 1;
            assert!(rounds < 50, "{error}");
        }
        let made = left(&moto, &name);
        assert_eq!((made.balancers, made.groups), (1, 2), "seed {seed}");
        while let Err(error) = delete(&*provider, &name).await {
            rounds += 1;
            assert!(rounds < 50, "{error}");
        }
        assert_eq!(left(&moto, &name), Left { balancers: 0, groups: 0, rules: 0 }, "seed {seed}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_of_others_stay_and_refusals_are_sentences() {
    let Some(moto) = Moto::start() else { return };
    let world = moto.world(3);
    let foreign = format!(
        "b = elb.create_load_balancer(Name='theirs', Type='network', Subnets={})['LoadBalancers'][0]\nprint('1')",
        world["subnets"]
    );
    moto.boto3(&foreign);
    let door = Door::before(&moto);
    let provider = open_provider(&door).await;
    let wanted = balancer("theirs", nodes(&world, 1), &[]);
    let error = ensure(&*provider, &wanted).await.unwrap_err();
    let sentence = "the load balancer theirs is not this cluster's: it has no tag kubernetes.io/cluster/c=owned";
    assert_eq!(error, Error::Invalid(sentence.to_owned()));
    delete(&*provider, "theirs").await.unwrap();
    assert_eq!(left(&moto, "theirs"), Left { balancers: 1, groups: 0, rules: 0 });

    let wrong = balancer("a2", nodes(&world, 1), &[("subnets", "subnet-none")]);
    let error = ensure(&*provider, &wrong).await.unwrap_err().to_string();
    assert!(error.ends_with("has no subnet \"subnet-none\""), "{error}");
    assert_eq!(left(&moto, "a2"), Left { balancers: 0, groups: 0, rules: 0 });

    for code in ["AuthFailure", "UnauthorizedOperation", "SignatureDoesNotMatch"] {
        door.set(Fault::Refuse(code));
        let error = ensure(&*provider, &wanted).await.unwrap_err();
        assert!(matches!(&error, Error::Denied(message) if message.contains(code)), "{error}");
        let node = NodeReference { name: "n".to_owned(), provider_id: nodes(&world, 1)[0].provider_id.clone() };
        let error = provider.instance(&node).await.unwrap_err();
        assert!(matches!(error, Error::Denied(_)), "an error is never an instance that is gone");
    }
    door.set(Fault::Refuse("RequestLimitExceeded"));
    let error = ensure(&*provider, &wanted).await.unwrap_err();
    assert!(matches!(error, Error::Throttled { .. }), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn instances_and_routes_are_those_of_the_cloud() {
    let Some(moto) = Moto::start() else { return };
    let world = moto.world(3);
    let door = Door::before(&moto);
    let provider = open_provider(&door).await;
    let all = nodes(&world, 3);
    let by_name = NodeReference { name: all[0].name.clone(), provider_id: String::new() };
    let found = provider.instance(&by_name).await.unwrap().unwrap();
    assert_eq!(found.provider_id, all[0].provider_id);
    assert_eq!((found.instance_type.as_str(), found.region.as_str()), ("t3.small", "eu-central-1"));
    assert_eq!(found.addresses[0].address, all[0].internal_addresses[0].to_string());
    assert!(!found.is_shut_down);
    let by_id = NodeReference { name: "n".to_owned(), provider_id: all[1].provider_id.clone() };
    let id = world["nodes"][1]["id"].as_str().unwrap();
    moto.boto3(&format!("ec2.stop_instances(InstanceIds=['{id}'])\nprint('1')"));
    assert!(provider.instance(&by_id).await.unwrap().unwrap().is_shut_down);
    moto.boto3(&format!("ec2.terminate_instances(InstanceIds=['{id}'])\nprint('1')"));
    assert_eq!(provider.instance(&by_id).await.unwrap(), None);
    let unknown = NodeReference { name: "n".to_owned(), provider_id: "aws:///z/i-0123456789abcdef0".to_owned() };
    assert_eq!(provider.instance(&unknown).await.unwrap(), None);

    let routes = provider.routes().unwrap();
    let route = Route { node: all[0].clone(), cidr: "10.244.0.0/24".to_owned() };
    routes.create_route(&route).await.unwrap();
    routes.create_route(&route).await.unwrap();
    let listed = routes.list_routes().await.unwrap();
    assert_eq!(listed.len(), 1);
    assert_eq!((&listed[0].cidr, &listed[0].node.provider_id), (&route.cidr, &all[0].provider_id));
    let moved = Route { node: all[2].clone(), cidr: route.cidr.clone() };
    routes.create_route(&moved).await.unwrap();
    let table = world["table"].as_str().unwrap();
    let judged = moto.boto3(&format!(
        "t = ec2.describe_route_tables(RouteTableIds=['{table}'])['RouteTables'][0]['Routes']\n\
         print(json.dumps([[r.get('DestinationCidrBlock'), r.get('InstanceId')] for r in t]))"
    ));
    assert!(judged.as_array().unwrap().contains(&json!(["10.244.0.0/24", world["nodes"][2]["id"]])), "{judged}");
    routes.delete_route(&moved).await.unwrap();
    routes.delete_route(&moved).await.unwrap();
    assert_eq!(routes.list_routes().await.unwrap(), []);
}

#[tokio::test]
async fn routes_of_many_nodes_share_their_questions() {
    let Some(moto) = Moto::start() else { return };
    let count = number("CLOUD_TEST_NODES", 6);
    let world = moto.world(count);
    let door = Door::before(&moto);
    let provider = open_provider(&door).await;
    let routes = provider.routes().unwrap();
    let route = |(index, node): (usize, BalancerNode)| Route { node, cidr: format!("10.244.{index}.0/24") };
    let wanted: Vec<Route> = nodes(&world, count).into_iter().enumerate().map(route).collect();
    door.set(Fault::None);
    assert_eq!(routes.list_routes().await.unwrap(), []);
    let made = futures::future::join_all(wanted.iter().map(|route| routes.create_route(route))).await;
    let actions = door.actions();
    // The lists of moto's threads change while others read them, which it answers with an internal error.
    for (route, made) in wanted.iter().zip(&made) {
        if let Err(error) = made {
            assert!(error.to_string().contains("500 Internal Server Error"), "{error}");
            routes.create_route(route).await.unwrap();
        }
    }
    let chunks = count.div_ceil(200);
    assert_eq!(actions["DescribeRouteTables"], 1, "{actions:?}");
    assert!(actions["DescribeInstances"] <= 1 + chunks, "the first may ask before the others: {actions:?}");
    assert!(actions["CreateRoute"] <= count && actions["ModifyInstanceAttribute"] <= count, "{actions:?}");
    door.set(Fault::None);
    assert_eq!(routes.list_routes().await.unwrap().len(), count);
    let settled = door.actions();
    assert_eq!((settled.len(), settled["DescribeRouteTables"]), (2, 1), "{settled:?}");
    assert!(settled["DescribeInstances"] <= 1 + chunks, "{settled:?}");
    // A route that was just made is asked for anew, and a CIDR that moves is replaced.
    let moved = Route { node: wanted[1].node.clone(), cidr: wanted[0].cidr.clone() };
    routes.create_route(&moved).await.unwrap();
    assert_eq!(door.actions()["ReplaceRoute"], 1, "{:?}", door.actions());
}

#[tokio::test(flavor = "multi_thread")]
async fn services_and_nodes_of_a_cluster_are_followed() {
    let Some(moto) = Moto::start() else { return };
    let world = moto.world(3);
    let door = Door::before(&moto);
    let plane = TestServer::start().await;
    let add_node = async |index: usize| {
        let name = world["nodes"][index]["name"].as_str().unwrap();
        let taint = json!({"key": "node.cloudprovider.kubernetes.io/uninitialized", "value": "true",
            "effect": "NoSchedule"});
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name},
            "spec": {"taints": [taint], "podCIDRs": [format!("10.244.{index}.0/24")],
                "podCIDR": format!("10.244.{index}.0/24")}});
        plane.post("/api/v1/nodes", node).await.expect(201);
    };
    for index in 0..2 {
        add_node(index).await;
    }
    let config = Config {
        identity: "test".to_owned(),
        election: None,
        controllers: CONTROLLERS.to_vec(),
        cluster_cidrs: vec![corten_api::AddressRange::parse("10.244.0.0/16").unwrap()],
        configure_routes: true,
    };
    let shutdown = CancellationToken::new();
    let provider = open_provider(&door).await;
    let manager = tokio::spawn(corten_cloud::run(config, provider, plane.admin(), shutdown.clone()));
    let first = format!("/api/v1/nodes/{}", world["nodes"][0]["name"].as_str().unwrap());
    let node = eventually("the node is initialized", async || {
        let node = plane.get(&first).await.try_expect(200)?;
        let is_tainted = node["spec"]["taints"].to_string().contains("cloudprovider");
        if is_tainted { Err(node["spec"].to_string()) } else { Ok(node) }
    })
    .await;
    assert_eq!(node["spec"]["providerID"], json!(nodes(&world, 1)[0].provider_id));
    assert_eq!(node["metadata"]["labels"]["topology.kubernetes.io/zone"], "eu-central-1a");
    assert_eq!(node["metadata"]["labels"]["node.kubernetes.io/instance-type"], "t3.small");
    assert_eq!(node["status"]["addresses"][0]["address"], world["nodes"][0]["ip"]);

    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"},
        "spec": {"type": "LoadBalancer", "selector": {"app": "web"}, "ports": [{"port": 80}]}});
    plane.post("/api/v1/namespaces/default/services", service).await.expect(201);
    let path = "/api/v1/namespaces/default/services/web";
    let hostname = eventually("the Service has an address", async || {
        let service = plane.get(path).await.try_expect(200)?;
        let name = service.pointer("/status/loadBalancer/ingress/0/hostname").and_then(Value::as_str);
        name.map(str::to_owned).ok_or_else(|| service["status"].to_string())
    })
    .await;
    let targets = async |count: usize| {
        eventually("the targets are the nodes", async || {
            let state = moto.boto3(STATE);
            let found = state["balancers"][0]["listeners"][0]["targets"].as_array().map_or(0, Vec::len);
            if found == count { Ok(state) } else { Err(state.to_string()) }
        })
        .await
    };
    assert_eq!(targets(2).await["balancers"][0]["dns"], json!(hostname));
    add_node(2).await;
    targets(3).await;
    plane.delete(&first, None).await.expect(200);
    targets(2).await;
    plane.delete(path, None).await.expect(200);
    plane.until(path, 404).await;
    let state = moto.boto3(STATE);
    assert_eq!((&state["balancers"], &state["groups"]), (&json!([]), &json!(0)));
    assert_eq!(state["rules"].as_array().unwrap().len(), 1);
    eventually("the routes are those of the nodes that are left", async || {
        let listed =
            open_provider(&door).await.routes().unwrap().list_routes().await.map_err(|error| error.to_string())?;
        let mut cidrs: Vec<&str> = listed.iter().map(|route| route.cidr.as_str()).collect();
        cidrs.sort_unstable();
        if cidrs == ["10.244.1.0/24", "10.244.2.0/24"] { Ok(()) } else { Err(format!("{cidrs:?}")) }
    })
    .await;
    shutdown.cancel();
    manager.await.unwrap().unwrap();
}

/// Returns a number that the environment may set, to try more by hand.
fn number(name: &str, default: usize) -> usize {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Ensures a load balancer, and repeats what fails as the service controller does; returns the number of failures. The
/// lists of moto's threads change while others read them, which it answers with an internal error.
async fn ensure_at_last(provider: &dyn Provider, wanted: Balancer) -> usize {
    let mut failures = 0;
    while let Err(error) = ensure(provider, &wanted).await {
        failures += 1;
        assert!(failures < 10 && error.to_string().contains("500 Internal Server Error"), "{error}");
    }
    failures
}

#[tokio::test]
async fn many_services_and_nodes_share_their_questions() {
    let Some(moto) = Moto::start() else { return };
    let services = number("CLOUD_TEST_SERVICES", 24);
    let nodes_wanted = number("CLOUD_TEST_NODES", 6);
    let world = moto.world(nodes_wanted);
    let door = Door::before(&moto);
    // AWS permits too few rules for so many Services.
    let config = "[Global]\nDisableSecurityGroupIngress = true\n".to_owned();
    let provider = open("aws", &Setup { config, ..setup(&door) }).await.unwrap();
    let reference =
        |node: &BalancerNode| NodeReference { name: node.name.clone(), provider_id: node.provider_id.clone() };
    let nodes = nodes(&world, nodes_wanted);
    let references: Vec<NodeReference> = nodes.iter().map(reference).collect();
    let found = futures::future::join_all(references.iter().map(|node| provider.instance(node))).await;
    assert!(found.iter().all(|one| matches!(one, Ok(Some(_)))), "{found:?}");
    assert!(door.actions()["DescribeInstances"] <= 1 + nodes_wanted.div_ceil(200), "{:?}", door.actions());

    let wanted = |number: usize, nodes: &[BalancerNode]| {
        let mut wanted = balancer(&format!("a{number}"), nodes.to_vec(), &[]);
        wanted.ports.truncate(1);
        wanted.ports[0].node_port = 30_000 + u16::try_from(number).unwrap();
        wanted
    };
    let calls = async |nodes: &[BalancerNode], changes: usize| {
        door.set(Fault::None);
        let begun = std::time::Instant::now();
        let ensured = futures::stream::iter(0..services).map(|one| ensure_at_last(&*provider, wanted(one, nodes)));
        let failures = ensured.buffer_unordered(32).fold(0, async |sum, failures| sum + failures).await;
        let actions = door.actions();
        let changed: usize =
            actions.iter().filter(|(name, _)| !name.starts_with("Describe")).map(|(_, count)| count).sum();
        assert!((changes..=changes + failures).contains(&changed), "{failures} failures: {actions:?}");
        eprintln!(
            "{services} Services, {} nodes in {:?}, {failures} failures: {actions:?}",
            nodes.len(),
            begun.elapsed()
        );
        (actions, failures)
    };
    let registrations = nodes_wanted.div_ceil(200);
    // A target group, its targets, a load balancer and a listener of each Service.
    let (made, _) = calls(&nodes, services * (3 + registrations)).await;
    let asked: usize = made.iter().filter(|(name, _)| name.starts_with("Describe")).map(|(_, count)| count).sum();
    assert!(asked < 2 * services, "{asked} questions: {made:?}");
    // A node that leaves, and comes back.
    for (nodes, action) in [(&nodes[1..], "DeregisterTargets"), (&nodes[..], "RegisterTargets")] {
        let (changed, failures) = calls(nodes, services).await;
        assert!(failures > 0 || changed.len() == 1 && changed[action] == services, "{changed:?}");
    }
    // Nothing has changed.
    assert_eq!(calls(&nodes, 0).await.0, BTreeMap::new());
    // Another process compares all; parts of one load balancer can only be asked for by it.
    provider.forget();
    let (settled, _) = calls(&nodes, 0).await;
    for (action, count) in &settled {
        let is_single = ["Attributes", "TargetHealth", "Listeners"].iter().any(|part| action.ends_with(part));
        assert!(*count <= services && (is_single || *count < services), "{settled:?}");
    }
    let batches = 2 * services.div_ceil(20);
    assert!(settled["DescribeTags"] <= 2 * batches, "{batches} would do: {settled:?}");
}
