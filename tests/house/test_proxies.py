"""Examples of a TLS proxy, checked by the proxies themselves if they are installed."""

import ipaddress
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent.parent
PROXY = ROOT / "deploy" / "proxy"


@pytest.mark.skipif(shutil.which("caddy") is None, reason="caddy is not installed")
def test_caddy_takes_its_example(tmp_path: Path) -> None:
    environment = os.environ | {"GPUCLOUD_HOST": "gpus.example.org", "HOME": str(tmp_path)}
    command = ["caddy", "validate", "--adapter", "caddyfile", "--config", str(PROXY / "Caddyfile")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "not formatted" not in done.stderr


@pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed")
@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_nginx_takes_its_example(tmp_path: Path) -> None:
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=gpus.example.org", "-days", "1"]
    subprocess.run([*made, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    example = (PROXY / "nginx.conf").read_text().replace("/etc/ssl/gpucloud/", f"{tmp_path}/")
    (tmp_path / "example.conf").write_text(example)
    whole = f"pid {tmp_path}/pid;\nerror_log stderr;\nevents {{}}\nhttp {{ include {tmp_path}/example.conf; }}\n"
    (tmp_path / "nginx.conf").write_text(whole)
    command = ["nginx", "-t", "-q", "-p", str(tmp_path), "-c", str(tmp_path / "nginx.conf")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_server_believes_the_proxys_address_and_no_other() -> None:
    overriding = yaml.safe_load((PROXY / "caddy.yml").read_text())
    services = overriding["services"]
    address = services["caddy"]["networks"]["proxy"]["ipv4_address"]
    assert services["web"]["environment"]["FORWARDED_ALLOW_IPS"] == address
    assert services["web"]["environment"]["HTTPS_ONLY"] == "1"
    # It comes from there: the name that it asks for is the server's on their own network only.
    [alias] = services["web"]["networks"]["proxy"]["aliases"]
    assert f"reverse_proxy {alias}:8000" in (PROXY / "Caddyfile").read_text()
    # Not one that the engine may give to the server, which starts first.
    [network] = overriding["networks"]["proxy"]["ipam"]["config"]
    assert ipaddress.ip_address(address) in ipaddress.ip_network(network["subnet"])
    assert ipaddress.ip_address(address) not in ipaddress.ip_network(network["ip_range"])


def test_nginx_sets_the_visitors_address_and_appends_to_none() -> None:
    text = (PROXY / "nginx.conf").read_text()
    assert re.search(r"proxy_set_header X-Forwarded-For \$remote_addr;", text)
    assert "$proxy_add_x_forwarded_for" not in text
