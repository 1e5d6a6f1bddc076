"""stub while building"""

import click


@click.command()
def demo() -> None:
    """x"""
