//! Both halves of the driver alone, for csi-sanity: `ebs <socket> <instance> <zone> <sys> <dev>` serves until it is stopped.
//! The environment has the variables of AWS's tools.

use corten_aws::account::EC2;
use corten_aws::{Account, Environment, Preferences};
use corten_ebs::{Cloud, Config, Instance, NodeHalf, Roots};
use tokio_util::sync::CancellationToken;

const USAGE: &str = "usage: ebs <socket> <instance> <zone> <sys directory> <dev directory>";

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let mut next = || arguments.next().ok_or_else(|| anyhow::anyhow!(USAGE));
    let socket = next()?.into();
    let instance = Instance { id: next()?, zone: next()?, most_volumes: 26 };
    let roots = Roots { sys: next()?.into(), dev: next()?.into() };
    let variable = |name: &str| std::env::var(name).ok();
    let preferences = Preferences::default();
    let environment = Environment { variable: &variable, roots: "" };
    let account = Account::open(&preferences, environment).await.map_err(anyhow::Error::msg)?;
    let cloud = Cloud::new(account.api(EC2).map_err(anyhow::Error::msg)?, "example".to_owned());
    let shutdown = CancellationToken::new();
    let stop = shutdown.clone();
    tokio::spawn(async move {
        let _ = tokio::signal::ctrl_c().await;
        stop.cancel();
    });
    let node = Some(NodeHalf::new(instance, roots));
    let config = Config { controller: Some(cloud), node, socket, registration: None };
    corten_ebs::run(config, shutdown).await?;
    Ok(())
}
