# What topo says of this machine: as root, again after other code set IDO, and as an ordinary user.
# /job/site holds the packages and the project; the runs and the write are told apart by out/*.json.
set -eu
export PYTHONPATH=/job/site
mkdir -p out
python3 -c '
import importlib.util
heavy = [name for name in ("torch", "numpy") if importlib.util.find_spec(name)]
assert not heavy, heavy
'
python3 -m hicachectl topo -o json >out/root.json
python3 set_ido.py
python3 -m hicachectl topo -o json >out/ido-set.json
setpriv --reuid 65534 --regid 65534 --clear-groups python3 -m hicachectl topo -o json >out/nobody.json
