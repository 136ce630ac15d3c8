//! Random worlds: objects of every kind that a controller reconciles, in states that may or may not fit together, with
//! names few enough that they refer to each other.

use corten_meta::Value;
use testkit_fixture as fixture;

use super::Random;

/// Lines of the fixture language with chances: `<a|b>` is one of the alternatives, `20%WORD` is there in one of five
/// lines.
const OBJECTS: &[&str] = &[
    POD,
    POD,
    POD,
    POD,
    POD,
    POD,
    "pod <a|b|c>-<0|1|2> owner=job/<a|b> finalizers=batch.kubernetes.io/job-tracking \
     <Pending|Running|Failed|Succeeded> label.batch.kubernetes.io/controller-uid=job-<a|b> 70%node=<a|b|c|gone> 15%deleting",
    "deployment <a|b> replicas=<0|1|2|3> image=<i0|i1> revisionHistoryLimit=1 strategy.type=RollingUpdate 10%KEPT",
    "rs <a|b> replicas=<0|1|2|3> image=<i0|i1> 10%KEPT",
    // Its pods are also those of another ReplicaSet.
    "rs c replicas=<0|1|2|3> selector.matchLabels.app=a template.metadata.labels.app=a 10%KEPT",
    "sts <a|b> replicas=<0|1|2|3> image=<i0|i1> podManagementPolicy=Parallel 10%KEPT",
    "ds <a|b> image=<i0|i1> 10%KEPT",
    "job <a|b|c> parallelism=2 completions=3 backoffLimit=2 ttlSecondsAfterFinished=0 \
     completionMode=<Indexed|NonIndexed> 10%KEPT",
    "cj <a|b|c> schedule=\"0 0 1 1 *\" metadata.creationTimestamp=2025-06-01T00:00:00Z \
     jobTemplate.spec.template.spec.restartPolicy=Never 10%KEPT",
    "rc <a|b> replicas=<0|1|2|3> image=<i0|i1> 10%KEPT",
    NODE,
    NODE,
    "svc <a|b|c> type=<ClusterIP|LoadBalancer|ExternalName> clusterIP=10.96.0.9 ipFamilies=IPv4 port=80 \
     70%selector.app=<a|b> 10%KEPT",
    "endpoints <a|b|c> 10%KEPT \
     subsets=[{addresses: [{ip: 192.0.2.<0|1|2|3>}], ports: [{port: 80, protocol: TCP}]}]",
    "endpointslice <a|b|c> addressType=IPv4 endpoints=[{addresses: [192.0.2.<0|1|2|3>]}] ports=[{port: 80}] \
     label.kubernetes.io/service-name=<a|b|c> 10%KEPT label.endpointslice.kubernetes.io/managed-by=\
     <endpointslice-controller.k8s.io|endpointslicemirroring-controller.k8s.io|example.com>",
    "pv <a|b|c> size=5Gi accessModes=ReadWriteOnce class=a policy=<Retain|Delete|Recycle> 33%hostPath.path=/data \
     50%claim=<a:|a:gone|b:persistentvolumeclaim-b|c:persistentvolumeclaim-c> 10%KEPT",
    "pv <a|b|c> size=5Gi accessModes=ReadWriteOnce class=a policy=<Retain|Delete> 10%KEPT \
     csi={driver: example.com, volumeHandle: h} 50%claim=<a:gone|b:persistentvolumeclaim-b>",
    "pvc <a|b|c> size=4Gi accessModes=ReadWriteOnce class=<a|b> 30%volume=<a|b|c> \
     30%annotation.volume.kubernetes.io/selected-node=a 10%KEPT",
    "pdb <a|b|c> selector.matchLabels.app=<a|b> minAvailable=<0|1|2> status.disruptedPods={gone: now-245s} 10%KEPT",
    "secret <a|b|c> type=kubernetes.io/service-account-token metadata.creationTimestamp=2020-01-01T00:00:00Z \
     annotation.kubernetes.io/service-account.name=a 10%KEPT",
    "secret kube-system/bootstrap-token-abcdef type=bootstrap.kubernetes.io/token data.token-id=abcdef \
     data.token-secret=0123456789abcdef data.usage-bootstrap-signing=true \
     data.expiration=<2020-01-01T00:00:00Z|2090-01-01T00:00:00Z>",
    "clusterrole <a|b|c> aggregationRule.clusterRoleSelectors=[{matchLabels: {part: \"yes\"}}] rules=[] 10%KEPT",
    "clusterrole <a|b|c> label.part=yes rules=[{apiGroups: [\"\"], resources: [<a|b|c>], verbs: [get]}] 10%KEPT",
    "csr <a|b|c> age=<1d|4m> spec={request: \"\", signerName: example.com/s, usages: []} \
     50%condition.Denied=True@<1d|4m> 10%KEPT",
    "resourceclaimtemplate <a|b|c> spec.spec.devices.requests=[{name: r, exactly: {deviceClassName: c}}] 10%KEPT",
    "resourceclaim <a|b|c> devices.requests=[{name: r, exactly: {deviceClassName: c}}] status.allocation={} 10%KEPT \
     status.reservedFor=[{resource: pods, name: a-0, uid: pod-a-0}, {resource: pods, name: x, uid: gone}]",
    "servicecidr <a|b|c> cidrs=10.96.0.0/<16|24> 10%KEPT",
    "ipaddress 10.96.0.<0|1|2> spec={} label.ipaddress.kubernetes.io/managed-by=ipallocator.k8s.io",
    "sa <a|b|c> secrets=[{name: a}] 10%KEPT",
    "ns <a|b|c> 10%KEPT",
    "sc <a|b|c> provisioner=<corten/local-path|example.com/p> reclaimPolicy=Delete 10%KEPT \
     volumeBindingMode=WaitForFirstConsumer",
    "volumeattachment <a|b|c> attacher=example.com nodeName=a source.persistentVolumeName=a \
     status.attached=<true|false> 10%KEPT",
    "vac <a|b|c> driverName=example.com 10%KEPT",
    "cm kube-public/cluster-info data.kubeconfig=x",
];

const POD: &str = "pod <a|b|c>-<0|1|2> label.app=<a|b> <Pending|Running|Failed|Succeeded> 70%node=<a|b|c|gone> \
     70%ip=10.0.0.<1|2|3|4|5|6|7|8|9> 50%ready=<0|9|30|99> 15%deleting 60%owner=<rs|sts|ds|rc>/<a|b> \
     20%condition.DisruptionTarget=True@now-245s 12%pvc=<a|b|c> \
     12%volumes=[{name: e, ephemeral: {volumeClaimTemplate: {spec: {accessModes: [ReadWriteOnce], \
     resources: {requests: {storage: 1Gi}}}}}}] 15%resourceClaims=[{name: g, resourceClaimTemplateName: a}]";

const NODE: &str = "node <a|b|c> zone=<a|b> label.kubernetes.io/hostname=a annotation.corten/local-volumes=/data \
     unschedulable=<true|false|false|false> <ready|not-ready|unknown>=5 10%KEPT \
     30%taint=<node.kubernetes.io/out-of-service|mine>:NoExecute@now-245s 30%podCIDRs=10.244.<0|1|2|3>.0/24";

/// The words of an object that is being deleted and held by a finalizer.
const KEPT: &str = "deleting=245s finalizers=example.com/kept";

/// Returns a world of at most this many objects; of two with the same kind and name the later one stays.
pub fn world(random: &mut Random, most: usize) -> Vec<Value> {
    let mut all = fixture::objects("node a\nnode b\nnode c\nns default");
    all.extend((0..most).map(|_| fixture::object(&line(random))));
    all
}

/// Returns a random line.
fn line(random: &mut Random) -> String {
    let template = OBJECTS[random.next(OBJECTS.len())];
    let mut words = Vec::new();
    for word in fixture::split(template).expect("a line") {
        let chance = word.split_once('%').and_then(|(chance, word)| Some((chance.parse().ok()?, word)));
        let (is_there, word) = chance.map_or((true, word.as_str()), |(chance, word)| (random.chance(chance), word));
        if is_there {
            words.push(if word == "KEPT" { KEPT.to_owned() } else { chosen(random, word) });
        }
    }
    words.join(" ")
}

/// Replaces each `<a|b>` by one of its alternatives.
fn chosen(random: &mut Random, word: &str) -> String {
    let mut out = String::new();
    let mut rest = word;
    while let Some((before, (inside, after))) =
        rest.split_once('<').and_then(|(before, after)| Some((before, after.split_once('>')?)))
    {
        let alternatives: Vec<&str> = inside.split('|').collect();
        out.push_str(before);
        out.push_str(alternatives[random.next(alternatives.len())]);
        rest = after;
    }
    out + rest
}
