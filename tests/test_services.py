from support.services import Etcd, Nats


def test_etcd_and_nats_from_pypi_start_on_free_ports(shared_etcd: Etcd, shared_nats: Nats) -> None:
    assert shared_etcd.process
    assert shared_etcd.process.poll() is None
    assert shared_nats.process
    assert shared_nats.process.poll() is None
