"""The version of georope and the gate that checks the versions around it."""
from importlib import metadata

__version__ = '0.1.0'


def check_requirements() -> None:
    """Compare what is installed with the requirements of the installed georope (``requirements/runtime.txt``).

    Raises:
        RuntimeError: naming every package that is missing or of another version, and what to install. No ImportError:
            mmengine takes that for a scope without a registry, and goes on without a word.
    """
    from packaging.requirements import Requirement  # the method alone does without

    wrong = []
    for line in metadata.requires('georope') or ():
        requirement = Requirement(line)
        if requirement.marker and not requirement.marker.evaluate():
            continue
        try:
            found = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            found = None
        if found is None or not requirement.specifier.contains(found, prereleases=True):
            wrong.append(f'  {requirement.name}: {found or "nothing"} is installed, "{requirement}" is needed')
    if wrong:
        raise RuntimeError(
            f'georope {__version__} does not fit the packages installed here:\n' + '\n'.join(wrong)
            + '\nInstall the versions that were tested together (pip install -c requirements/pins.txt ...; `make setup`'
            ' in a clone of georope does all of it).')
